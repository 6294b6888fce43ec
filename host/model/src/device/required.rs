//! The least version of a driver, and the least compute capability of a GPU.

use std::fmt;

use anyhow::{Result, ensure};

/// Least version of CUDA that the driver must know, in the driver's numbers: the version of the
/// libraries to which this host is linked.
const CUDA: i32 = 13_000;
/// Compute capability of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Capability {
    pub(super) major: i32,
    pub(super) minor: i32,
}

/// Least compute capability, which products in bf16 need.
const CAPABILITY: Capability = Capability { major: 8, minor: 0 };

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Refuses a driver that knows no more than CUDA `version`.
pub(super) fn driver(name: &str, version: i32) -> Result<()> {
    ensure!(
        version >= CUDA,
        "device `{name}`: the NVIDIA driver knows CUDA up to {}, and this host needs {} \
         (update the driver to 580 or newer, or run with `--device cpu`)",
        text(version),
        text(CUDA)
    );
    Ok(())
}

/// A version of CUDA, such as 13.0, from the driver's number.
fn text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Refuses a GPU of a lower compute capability.
pub(super) fn capability(name: &str, found: Capability) -> Result<()> {
    ensure!(
        found >= CAPABILITY,
        "device `{name}`: its compute capability is {found}, and the least that works is \
         {CAPABILITY} (choose a newer GPU, such as an A100, or run with `--device cpu`)"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_old_drivers_and_old_gpus() {
        let said = |result: Result<()>| {
            result.map_or_else(|error| error.to_string(), |()| "fine".to_owned())
        };
        let cases = [
            (driver("cuda:0", 13_000), "fine"),
            (driver("cuda:0", 13_010), "fine"),
            (
                driver("cuda:0", 12_040),
                "device `cuda:0`: the NVIDIA driver knows CUDA up to 12.4, and this host needs 13.0 \
                 (update the driver to 580 or newer, or run with `--device cpu`)",
            ),
            (
                capability("cuda:1", Capability { major: 8, minor: 0 }),
                "fine",
            ),
            (
                capability(
                    "cuda:1",
                    Capability {
                        major: 12,
                        minor: 0,
                    },
                ),
                "fine",
            ),
            (
                capability("cuda:1", Capability { major: 7, minor: 5 }),
                "device `cuda:1`: its compute capability is 7.5, and the least that works is 8.0 \
                 (choose a newer GPU, such as an A100, or run with `--device cpu`)",
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(said(found), expected);
        }
    }
}
