//! A component or recipe that an image offers, and the image that it came from.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use capo_plugin::Point;
use capo_plugin::wire::KeyDoc;

/// The image that a component or recipe came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Linked into the executable.
    BuiltIn,
    /// Loaded from a file.
    File(PathBuf),
}

impl Origin {
    /// Name for messages: the file's name without its folder, or `built in`.
    pub fn name(&self) -> String {
        match self {
            Self::BuiltIn => self.to_string(),
            Self::File(path) => path
                .file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy()
                .into_owned(),
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::File(path) => write!(f, "`{}`", path.display()),
        }
    }
}

/// Longest name of a component or a recipe, in bytes.
const LONGEST_NAME: usize = 100;

/// Refuses a name that could mislead where it is shown, or be read as part of a path.
///
/// # Errors
///
/// When the name is not allowed. The message shows it with its control characters escaped, and the
/// rule.
pub(crate) fn check_name(kind: &str, name: &str, origin: &Origin) -> Result<()> {
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    ensure!(
        is_plain && name.len() <= LONGEST_NAME,
        "{origin} offers {:?} as a {kind}'s name (it may have letters, digits, `.`, `-` and `_`, \
         {LONGEST_NAME} at most: rename it in the plugin)",
        name.chars().take(LONGEST_NAME).collect::<String>()
    );
    Ok(())
}

/// One component that an image offers.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Its extension point.
    pub point: Point,
    /// Its id.
    pub id: String,
    /// A description in one line.
    pub about: String,
    /// The crate that registered the component, with its version.
    pub package: String,
    /// The configuration keys that the component reads.
    pub keys: Vec<KeyDoc>,
    /// The image that the component came from.
    pub origin: Origin,
    /// Index of that image in the registry.
    pub(crate) image: usize,
}

/// One recipe that an image offers.
#[derive(Debug, Clone)]
pub struct OfferedRecipe {
    /// The recipe's name in `recipe = "..."`.
    pub name: String,
    /// A description in one line.
    pub about: String,
    /// Component tables and defaults of other sections in TOML.
    pub toml: String,
    /// The image that the recipe came from.
    pub origin: Origin,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_names_with_other_characters() {
        for name in ["capo.curvature", "dr_grpo", "a", "Acme.Mask-2"] {
            check_name("component", name, &Origin::BuiltIn).unwrap();
        }
        let long = "a".repeat(LONGEST_NAME + 1);
        for name in [
            "",
            "a b",
            "a/../b",
            "..",
            ".hidden",
            "a\nmask",
            "a\u{1b}[2J",
            "a\u{202e}b",
            "a`b",
            "a#2",
            &long,
        ] {
            let error = check_name("component", name, &Origin::BuiltIn)
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with("built in offers \"") && !error.contains(['\n', '\u{1b}']),
                "{error}"
            );
        }
    }
}
