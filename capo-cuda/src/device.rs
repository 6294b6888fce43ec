//! Names of devices in settings and commands: `cpu`, `cuda:0`, `cuda:1`.

use std::fmt;

/// The name of the CPU.
pub const CPU: &str = "cpu";

/// The error for a name that no device has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSuchDevice(String);

impl fmt::Display for NoSuchDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there is no device `{}` (use `cpu`, or `cuda:0` for the first CUDA device)",
            self.0
        )
    }
}

impl std::error::Error for NoSuchDevice {}

/// The number of the CUDA device called `name`; `None` for the CPU.
///
/// # Errors
///
/// When `name` is any other name.
pub fn cuda_number(name: &str) -> Result<Option<usize>, NoSuchDevice> {
    if name == CPU {
        return Ok(None);
    }
    name.strip_prefix("cuda:")
        .and_then(|number| number.parse().ok())
        .map(Some)
        .ok_or_else(|| NoSuchDevice(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_other_names() {
        assert_eq!(cuda_number("cpu"), Ok(None));
        assert_eq!(cuda_number("cuda:3"), Ok(Some(3)));
        for name in ["gpu", "", "CPU", "cuda", "cuda:", "cuda:-1", "cuda:0:1"] {
            assert!(cuda_number(name).is_err(), "{name}");
        }
    }
}
