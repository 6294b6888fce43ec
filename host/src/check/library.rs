//! Checks of a whole library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use capo_loader::open;
use capo_plugin::testing::check::{Verdict, failed, success, warning};
use capo_plugin::wire::{MaskBox, PointList, RecipeList};
use capo_plugin::{Image, PluginError, Point};

use super::conduct::cpu_time;
use crate::config::{self, Draft};

/// Name of the system function that begins an unwinding panic; only libraries that unwind contain
/// it.
const UNWINDING: &[u8] = b"_Unwind_RaiseException";
/// Text that every library that may panic contains.
const PANICKING: &[u8] = b"panicked at ";

/// A loaded image, with the cost of loading it.
pub struct Loaded {
    pub image: Image,
    /// CPU time of loading it.
    pub time: Duration,
    /// The image's file; `None` for this executable, whose ids need no vendor.
    pub path: Option<PathBuf>,
}

impl Loaded {
    /// Loads the library at `path`, or takes this executable if there is none, and measures the CPU
    /// time.
    pub fn by(path: Option<&Path>) -> anyhow::Result<Self> {
        let start = cpu_time();
        let image = path.map_or_else(|| Ok(Image::own()), open::load)?;
        Ok(Self {
            image,
            time: cpu_time().saturating_sub(start),
            path: path.map(Path::to_owned),
        })
    }
}

/// Reports the CPU time of loading; it never fails.
pub fn load_time(loaded: &Loaded) -> Verdict {
    success(format!(
        "loading it is {:.1} ms of work",
        1e3 * loaded.time.as_secs_f64()
    ))
}

/// Checks that panics unwind, so that they can be contained.
pub fn panic_strategy(loaded: &Loaded) -> Verdict {
    let unwinds = match &loaded.path {
        None => cfg!(panic = "unwind"),
        Some(path) => {
            let bytes = capo_system::files::bytes(path)
                .map_err(|error| PluginError::state(format!("cannot read it: {error}")))?;
            holds(&bytes, UNWINDING) || !holds(&bytes, PANICKING)
        }
    };
    if unwinds {
        return success("panics unwind, and end no process");
    }
    warning(
        "it was built with `panic = \"abort\"`: a panic ends the whole run (take that line out of \
         its profile)",
    )
}

fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// Checks for extension ids that no host knows.
pub fn unknown_extensions(loaded: &Loaded) -> Verdict {
    let long = "x".repeat(100_000);
    let ids = [
        "",
        "capo.mask",
        "capo.mask/",
        "capo.mask/999",
        "CAPO.MASK/1",
        "nobody.knows-this/1",
        "\u{1f980}\n",
        &long,
    ];
    for id in ids {
        let shown: String = id.chars().take(40).collect();
        match (
            loaded.image.extension::<PointList<MaskBox>>(id),
            loaded.image.extension::<RecipeList>(id),
        ) {
            (Ok(None), Ok(None)) => {}
            _ => {
                return failed(format!(
                    "it answers to extension id {shown:?}, which does not exist"
                ));
            }
        }
    }
    success("ids that do not exist are answered with none")
}

/// Checks ids, descriptions and keys of all components.
pub fn component_ids(loaded: &Loaded) -> Verdict {
    let mut seen = BTreeSet::new();
    for point in Point::ALL {
        let own = Image::own().components(point)?;
        for info in loaded.image.components(point)? {
            let id = info.id.as_str();
            // A library for other hosts may contain components that are also built into this
            // trainer.
            let built_in = own
                .iter()
                .any(|own| own.id == info.id && own.package == info.package);
            if loaded.path.is_some() && !built_in && !is_well_formed(id) {
                return failed(format!(
                    "{id:?} is not of the form `vendor.name` (use lower-case letters, digits, `-` \
                     and `_`)"
                ));
            }
            if !seen.insert((point, id.to_owned())) {
                return failed(format!(
                    "`{id}` is offered twice (give each component its own id)"
                ));
            }
            if info.about.trim().is_empty() || info.about.contains('\n') {
                return failed(format!(
                    "`{id}` is described by {:?} (write one line)",
                    info.about.as_str()
                ));
            }
            let keys: BTreeSet<&str> = info.keys.iter().map(|key| key.name.as_str()).collect();
            if keys.len() != info.keys.len() {
                return failed(format!("`{id}` lists a key twice"));
            }
        }
    }
    if seen.is_empty() {
        return warning("it offers no component (call `register!`)");
    }
    success("well formed and unique")
}

/// True for `vendor.name`, made of lower-case letters, digits, `-` and `_`.
fn is_well_formed(id: &str) -> bool {
    id.len() <= 100 && id.contains('.') && id.split('.').all(is_word)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_')
}

/// Checks that recipes hold only what recipes may hold.
pub fn recipes(loaded: &Loaded) -> Verdict {
    let mut recipes = loaded.image.recipes()?;
    // The linker decides the order in which an image lists them.
    recipes.sort_by(|a, b| a.name.cmp(&b.name));
    for recipe in &recipes {
        let merged = Draft::read(None, config::DEFAULT, &[])
            .and_then(|mut draft| draft.merge_recipe(&recipe.name, &recipe.toml));
        if let Err(error) = merged {
            return failed(error.to_string());
        }
    }
    let names: Vec<String> = recipes
        .iter()
        .map(|recipe| format!("`{}`", recipe.name))
        .collect();
    success(if names.is_empty() {
        "it carries none".into()
    } else {
        names.join(", ")
    })
}

#[cfg(test)]
mod tests {
    use super::is_well_formed;

    #[test]
    fn accepts_a_vendor_and_a_name() {
        assert!(
            [
                "capo.curvature",
                "dr_grpo.advantage",
                "acme.surprise-cap",
                "a.b.c2"
            ]
            .into_iter()
            .all(is_well_formed)
        );
        assert!(
            ![
                "capo",
                "",
                ".",
                "capo.",
                "Capo.mask",
                "capo.my mask",
                "capo.1",
                "a.b/c"
            ]
            .into_iter()
            .any(is_well_formed)
        );
    }
}
