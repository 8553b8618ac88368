//! `gpuhook ca`: an authority for hosts' certificates alone, for installations that have none. A host's
//! certificate says its name, which is all that AWS knows it by.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

/// The authority's folder holds ca.key and ca.pem.
#[derive(Debug, Subcommand)]
pub(crate) enum CaCommand {
    /// Make an authority: ca.key, to be kept offline, and ca.pem, which infra/iam/roles-anywhere.yaml takes.
    New {
        /// Its folder; an authority that is there stays.
        #[arg(long, default_value = "ca")]
        out: PathBuf,
        /// Its common name: parameter IssuerCommonName of the stack.
        #[arg(long, default_value = "gpuhook hosts")]
        name: String,
    },
    /// Sign the request that `gpuhook-agent enrol` made, for a short life.
    ///
    /// Look at the host's name that is printed: whoever has the certificate is that host to AWS.
    Sign {
        /// The request, host.csr.
        request: PathBuf,
        /// The authority's folder.
        #[arg(long, default_value = "ca")]
        ca: PathBuf,
        /// The certificate to write; the request's name with .pem by default.
        #[arg(long)]
        out: Option<PathBuf>,
        /// Hours until it ends; a timer on the host asks for another in time.
        #[arg(long, default_value_t = 72, value_parser = clap::value_parser!(u32).range(1..=8760))]
        hours: u32,
    },
}

/// Runs an authority's command.
#[cfg(feature = "aws")]
pub(crate) fn run(command: CaCommand) -> Result<()> {
    match command {
        CaCommand::New { out, name } => authority::new(&out, &name),
        CaCommand::Sign {
            request,
            ca,
            out,
            hours,
        } => {
            let out = out.unwrap_or_else(|| request.with_extension("pem"));
            authority::sign(&request, &ca, &out, hours)
        }
    }
}

#[cfg(not(feature = "aws"))]
pub(crate) fn run(command: CaCommand) -> Result<()> {
    match command {
        CaCommand::New { out, name } => drop((out, name)),
        CaCommand::Sign {
            request,
            ca,
            out,
            hours,
        } => drop((request, ca, out, hours)),
    }
    crate::cloud::not_built()
}

#[cfg(feature = "aws")]
mod authority;
