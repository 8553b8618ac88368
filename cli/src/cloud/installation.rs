//! The installation: its stack's outputs, and clients for what it is made of.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use aws_sdk_cloudformation::Client;
use backplane::aws::{Aws, Connection, DynamoStore, StaticKeys};

use super::{InstallationArgs, stack};

/// An installation that exists.
pub(crate) struct Installation {
    pub(crate) aws: Aws,
    pub(crate) formation: Client,
    outputs: BTreeMap<String, String>,
    name: String,
}

impl Installation {
    /// Looks at the installation's stack. A person's keys may be long-lived: that is theirs to decide.
    pub(crate) async fn open(args: &InstallationArgs) -> Result<Self> {
        let connection = Connection {
            region: args.region.clone(),
            profile: args.profile.clone(),
            static_keys: StaticKeys::Allowed,
            ..Connection::default()
        };
        let aws = Aws::connect(&connection).await?;
        aws.ready().await?;
        let formation = Client::new(aws.sdk_config());
        let found = stack::outputs(&formation, &args.stack).await?;
        let outputs = found.with_context(|| {
            format!(
                "there is no stack {}: deploy template.yaml first, or name the stack with --stack (docs/cloud.md)",
                args.stack
            )
        })?;
        Ok(Self {
            aws,
            formation,
            outputs,
            name: args.stack.clone(),
        })
    }

    /// An output of the stack.
    pub(crate) fn output(&self, name: &str) -> Result<&str> {
        let found = self.outputs.get(name).map(String::as_str);
        found.with_context(|| {
            format!(
                "stack {} has no output {name}: is it gpuhook's template.yaml, and up to date?",
                self.name
            )
        })
    }

    /// Prefix of its names.
    pub(crate) fn prefix(&self) -> Result<&str> {
        self.output("Prefix")
    }

    /// Its table.
    pub(crate) fn store(&self) -> Result<DynamoStore> {
        Ok(DynamoStore::new(&self.aws, self.output("TableName")?))
    }
}
