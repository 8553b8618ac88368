//! What a packaged program needs of the machine that runs it, before it is deployed: that it is for the
//! right processor, that it may be executed, and that its C library is not too new (field F69).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::LittleEndian;
use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::{FileHeader, SectionHeader};

/// The C library of `provided.al2023`, and the oldest that a GPU host may have (RHEL 9, Ubuntu 22.04).
const NEWEST_GLIBC: (u32, u32) = (2, 34);

/// Architectures of the template, and the machine that a program's header then names.
pub(crate) const ARCHITECTURES: [(&str, u16); 2] = [("x86_64", EM_X86_64), ("arm64", EM_AARCH64)];

/// The template's name for this machine's architecture.
pub(crate) fn here() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        other => other,
    }
}

/// Checks programs for an architecture of the template.
pub(crate) fn check(folder: &Path, programs: &[&str], architecture: &str) -> Result<()> {
    let machine = ARCHITECTURES.iter().find(|(name, _)| *name == architecture);
    let (_, machine) =
        machine.with_context(|| format!("{architecture} is no architecture of the template"))?;
    for program in programs {
        let path = folder.join(program);
        let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let needs = needs(&bytes).with_context(|| format!("look into {}", path.display()))?;
        judge(program, &needs, *machine, architecture)?;
        // Archives keep the mode that a file has, and Lambda starts what the archive says.
        if std::fs::metadata(&path)?.permissions().mode() & 0o111 == 0 {
            bail!(
                "{program} is not executable: it would end in `permission denied`; `chmod +x {}`",
                path.display()
            );
        }
        let (major, minor) = needs.glibc;
        println!(
            "    {program}: {architecture}, needs GLIBC_{major}.{minor}, {} KiB",
            bytes.len() / 1024
        );
    }
    Ok(())
}

/// What a program needs.
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    machine: u16,
    glibc: (u32, u32),
}

fn judge(program: &str, needs: &Needs, machine: u16, architecture: &str) -> Result<()> {
    if needs.machine != machine {
        bail!(
            "{program} is not for {architecture} (ELF machine {}): it would end in `exec format error`; build it for the Architecture that the stack has",
            needs.machine
        );
    }
    if needs.glibc > NEWEST_GLIBC {
        let ((major, minor), (most, least)) = (needs.glibc, NEWEST_GLIBC);
        bail!(
            "{program} needs GLIBC_{major}.{minor} and {most}.{least} is what there is: `version not found` at its start; build it with cargo-lambda, or on an older distribution"
        );
    }
    Ok(())
}

fn needs(bytes: &[u8]) -> Result<Needs> {
    let header =
        FileHeader64::<LittleEndian>::parse(bytes).context("it is no 64-bit ELF program")?;
    let endian = header.endian()?;
    let mut glibc = (0, 0);
    for section in header.sections(endian, bytes)?.iter() {
        let Some((mut files, strings)) = section.gnu_verneed(endian, bytes)? else {
            continue;
        };
        let strings = header
            .sections(endian, bytes)?
            .strings(endian, bytes, strings)?;
        while let Some((_, mut versions)) = files.next()? {
            while let Some(version) = versions.next()? {
                let name = version.name(endian, strings)?;
                let name = String::from_utf8_lossy(name);
                glibc = glibc.max(glibc_of(&name).unwrap_or_default());
            }
        }
    }
    Ok(Needs {
        machine: header.e_machine.get(endian),
        glibc,
    })
}

/// `GLIBC_2.34` as numbers; other libraries' versions are none.
///
/// `GLIBC_ABI_DT_RELR` and its like ask for a feature of the loader. 2.36 brought the first of them, and
/// an older loader refuses the program as it does for a version.
fn glibc_of(name: &str) -> Option<(u32, u32)> {
    let version = name.strip_prefix("GLIBC_")?;
    if version.starts_with("ABI_") {
        return Some((2, 36));
    }
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_for_this_machine() {
        let program = std::env::current_exe().unwrap();
        let needs = needs(&std::fs::read(program).unwrap()).unwrap();
        let expect = ARCHITECTURES.iter().find(|(name, _)| *name == here());
        assert_eq!(Some(needs.machine), expect.map(|(_, machine)| *machine));
        assert!(needs.glibc >= (2, 2), "{needs:?}");
        needs_nothing_of_a_script();
    }

    fn needs_nothing_of_a_script() {
        for bytes in [&b"#!/bin/sh\n"[..], b"", b"\x7fELF"] {
            needs(bytes).unwrap_err();
        }
    }

    #[test]
    fn what_would_not_start_is_refused_with_what_to_do() {
        let of = |machine, glibc| Needs { machine, glibc };
        let judged = |needs| {
            judge("webhook", &needs, EM_AARCH64, "arm64").map_err(|error| error.to_string())
        };
        assert_eq!(judged(of(EM_AARCH64, (2, 34))), Ok(()));
        let machine = judged(of(EM_X86_64, (2, 30))).unwrap_err();
        assert!(machine.contains("not for arm64"), "{machine}");
        let glibc = judged(of(EM_AARCH64, (2, 36))).unwrap_err();
        assert!(glibc.contains("needs GLIBC_2.36"), "{glibc}");
        assert_eq!(glibc_of("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc_of("GLIBC_ABI_DT_RELR"), Some((2, 36)));
        assert_eq!(glibc_of("GCC_3.0"), None);
        assert_eq!(glibc_of("GLIBC_PRIVATE"), None);
    }

    /// What `check` says of this very program, after its bytes and its mode were changed.
    fn checked(mode: u32, doctor: impl Fn(&mut Vec<u8>)) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        doctor(&mut bytes);
        let path = folder.path().join("bootstrap");
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        check(folder.path(), &["bootstrap"], here()).map_err(|error| format!("{error:#}"))
    }

    /// Every `GLIBC_2.dd`, in place: where the loader reads it, the length has to stay.
    fn set_glibc(bytes: &mut [u8], minor: &[u8; 2]) {
        let prefix = b"GLIBC_2.";
        for at in 0..bytes.len().saturating_sub(prefix.len() + 2) {
            let digits = at + prefix.len()..at + prefix.len() + 2;
            let is_version = bytes[at..].starts_with(prefix)
                && bytes[digits.clone()].iter().all(u8::is_ascii_digit);
            if is_version {
                bytes[digits].copy_from_slice(minor);
            }
        }
    }

    #[test]
    fn doctored_programs_are_refused() {
        let old = |bytes: &mut Vec<u8>| set_glibc(bytes, b"17");
        assert_eq!(checked(0o755, old), Ok(()));

        // `e_machine` lies 18 bytes into every ELF header; this one is for RISC-V.
        let machine = checked(0o755, |bytes| bytes[18..20].copy_from_slice(&[243, 0]));
        assert!(machine.unwrap_err().contains("ELF machine 243"));
        let glibc = checked(0o755, |bytes| set_glibc(bytes, b"99"));
        assert!(glibc.unwrap_err().contains("needs GLIBC_2.99"));
        let mode = checked(0o644, old);
        assert!(mode.unwrap_err().contains("is not executable"));
        let half = checked(0o755, |bytes| bytes.truncate(60));
        assert!(half.unwrap_err().contains("no 64-bit ELF program"));
    }
}
