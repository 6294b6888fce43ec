//! The least version of a driver, and the least compute capability of a GPU.

use anyhow::{Result, ensure};

/// Least version of CUDA that the driver must know: that of the libraries that this host is linked
/// to, as the driver counts.
const CUDA: i32 = 13_000;
/// Least compute capability: products in bf16.
const CAPABILITY: (i32, i32) = (8, 0);

/// Refuses a driver that knows no more than CUDA `version`.
pub(super) fn driver(name: &str, version: i32) -> Result<()> {
    let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    ensure!(
        version >= CUDA,
        "device `{name}`: the NVIDIA driver knows CUDA up to {}, and this host needs {} (update the driver to 580 or newer, or run with `--device cpu`)",
        text(version),
        text(CUDA)
    );
    Ok(())
}

/// Refuses a GPU of a lower compute capability.
pub(super) fn capability(name: &str, (major, minor): (i32, i32)) -> Result<()> {
    ensure!(
        (major, minor) >= CAPABILITY,
        "device `{name}`: its compute capability is {major}.{minor}, and the least that works is {}.{} (choose a newer GPU, such as an A100, or run with `--device cpu`)",
        CAPABILITY.0,
        CAPABILITY.1
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_drivers_and_old_gpus_are_refused() {
        let said = |result: Result<()>| {
            result.map_or_else(|error| error.to_string(), |()| "fine".to_owned())
        };
        let cases = [
            (driver("cuda:0", 13_000), "fine"),
            (driver("cuda:0", 13_010), "fine"),
            (
                driver("cuda:0", 12_040),
                "device `cuda:0`: the NVIDIA driver knows CUDA up to 12.4, and this host needs 13.0 (update the driver to 580 or newer, or run with `--device cpu`)",
            ),
            (capability("cuda:1", (8, 0)), "fine"),
            (capability("cuda:1", (12, 0)), "fine"),
            (
                capability("cuda:1", (7, 5)),
                "device `cuda:1`: its compute capability is 7.5, and the least that works is 8.0 (choose a newer GPU, such as an A100, or run with `--device cpu`)",
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(said(found), expected);
        }
    }
}
