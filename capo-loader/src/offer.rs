//! What is on offer: a component or a recipe, and the image that it came from.

use std::path::PathBuf;

use capo_plugin::Point;

/// An image's name in sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Linked into the executable.
    BuiltIn,
    /// Loaded from a file.
    File(PathBuf),
}

impl Origin {
    /// The file's name without its folder, or `built in`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::BuiltIn => self.to_string(),
            Self::File(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
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

/// One component on offer.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Its extension point.
    pub point: Point,
    /// Its id.
    pub id: String,
    /// One line for a person.
    pub about: String,
    /// The crate that registered it, with its version.
    pub package: String,
    /// The configuration keys it reads.
    pub keys: Vec<String>,
    /// Where it came from.
    pub origin: Origin,
    pub(crate) image: usize,
}

/// One recipe on offer.
#[derive(Debug, Clone)]
pub struct OfferedRecipe {
    /// What `recipe = "..."` calls it.
    pub name: String,
    /// One line for a person.
    pub about: String,
    /// Component tables and, where there are `settings`, defaults of other keys.
    pub toml: String,
    /// Whether the text may hold more than component tables.
    pub settings: bool,
    /// Where it came from.
    pub origin: Origin,
}
