//! This image's recipes in two lists. The oldest hosts read only the first: recipes of advantage, objective and masks alone.

use abi_stable::std_types::RVec;

use crate::abi::RecipeInfo;
use crate::register::Recipe;

/// Sections that the oldest hosts refuse in a recipe: defaults of settings, and points that were added later.
const SETTINGS: [&str; 5] = ["train", "rollout", "reward", "weight", "step_control"];

/// Function behind `capo.recipe/1`.
pub(crate) extern "C" fn recipes() -> RVec<RecipeInfo> {
    list(false)
}

/// Function behind `capo.recipe/2`.
pub(crate) extern "C" fn recipes_with_settings() -> RVec<RecipeInfo> {
    list(true)
}

fn list(settings: bool) -> RVec<RecipeInfo> {
    inventory::iter::<Recipe>
        .into_iter()
        .filter(|recipe| has_settings(recipe.toml) == settings)
        .map(|recipe| RecipeInfo {
            name: recipe.name.into(),
            about: recipe.about.into(),
            toml: recipe.toml.into(),
            package: recipe.package.into(),
        })
        .collect()
}

/// True if a recipe's text names one of these sections, in a table header or in a key above the first header. The
/// text need not be valid TOML: the host parses it and reports errors.
fn has_settings(toml: &str) -> bool {
    let mut above = true;
    toml.lines().map(str::trim).any(|line| {
        let header = line.starts_with('[');
        above &= !header;
        let words = line.trim_start_matches(['[', ' ', '"', '\'']);
        let name = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').next().unwrap_or_default();
        (header || above) && SETTINGS.contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::has_settings;

    #[test]
    fn settings_are_found_in_headers_and_in_keys_above_them() {
        let mask = "[advantage]\nuse = \"a.b\"\n\n[[mask]]\nuse = \"a.c\"\n";
        for settings in [
            "[train]\nlearning_rate = 1e-4\n",
            "  [ rollout ]\n",
            "[[reward]]\nuse = \"exact_match\"\n",
            "[train.more]\n",
            "[\"train\"]\n",
            "[[weight]]\nuse = \"a.b\"\n",
            "[[step_control]]\nuse = \"a.b\"\n",
        ] {
            assert!(has_settings(settings) && has_settings(&format!("{mask}{settings}")), "{settings}");
        }
        assert!(
            has_settings(&format!("train.learning_rate = 1e-4\n{mask}")) && has_settings("rollout = { top_k = 5 }")
        );
        // None of these counts: a component's own key, another name, a comment.
        for none in
            ["", mask, &format!("{mask}reward = 1\n"), "[trainer]\n", "# [train]\n", "[[mask]]\nnote = \"[train]\"\n"]
        {
            assert!(!has_settings(none), "{none}");
        }
    }
}
