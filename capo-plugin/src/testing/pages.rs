//! Tables of keys in Markdown pages.

use std::fs;
use std::path::Path;

use crate::wire::{ComponentInfo, KeyDoc};
use crate::{Image, Limits, Point};

const BEGIN: &str = "<!-- keys: ";
const END: &str = "\n<!-- end of keys -->";

/// Compares the tables of keys in a Markdown page with the components of this image. With the
/// environment variable `CAPO_WRITE_TABLES` set, it writes the tables into the page instead.
///
/// A table stands between `<!-- keys: mask acme.surprise-cap -->` and `<!-- end of keys -->`. The
/// first comment names a point and ids of its components; without an id the table has all
/// components of the point.
///
/// # Errors
///
/// When the page cannot be read or written, names an unknown component, or has another table.
pub fn key_tables(page: impl AsRef<Path>) -> Result<(), String> {
    let page = page.as_ref();
    let failed = |error: std::io::Error| format!("`{}`: {error}", page.display());
    let text = fs::read_to_string(page).map_err(failed)?;
    let written = with_tables(&text).map_err(|why| format!("`{}`: {why}", page.display()))?;
    if written == text {
        return Ok(());
    }
    if std::env::var_os("CAPO_WRITE_TABLES").is_some() {
        return fs::write(page, written).map_err(failed);
    }
    Err(format!(
        "the tables of keys in `{}` are not those of the components (set `CAPO_WRITE_TABLES=1` to \
         write them)",
        page.display()
    ))
}

/// The page with its tables as they should be.
fn with_tables(page: &str) -> Result<String, String> {
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part
            .split_once(" -->")
            .ok_or("a comment `keys: ` has no end")?;
        let (_, rest) = rest
            .split_once(END)
            .ok_or_else(|| format!("the table `{name}` has no end"))?;
        text += &format!("{BEGIN}{name} -->\n\n{}\n{END}{rest}", table(name)?);
    }
    Ok(text)
}

/// The table that a comment names by a point and ids.
fn table(name: &str) -> Result<String, String> {
    let mut words = name.split(' ');
    let word = words.next().unwrap_or_default();
    let point = Point::ALL
        .into_iter()
        .find(|point| point.name() == word)
        .ok_or_else(|| format!("there is no point `{word}`"))?;
    let mut components = Image::own().components(point)?;
    components.sort_by(|one, other| one.id.cmp(&other.id));
    let ids: Vec<&str> = words.collect();
    if let Some(unknown) = ids
        .iter()
        .find(|id| components.iter().all(|component| component.id != **id))
    {
        return Err(format!("there is no {word} `{unknown}`"));
    }
    components.retain(|component| ids.is_empty() || ids.contains(&component.id.as_str()));
    let (head, line) = match &components[..] {
        [_] => (String::new(), "|---|---|---|---|"),
        _ => (
            format!(" {} |", word.replace('_', " ")),
            "|---|---|---|---|---|",
        ),
    };
    let rows = components.iter().flat_map(|component| {
        let is_alone = components.len() == 1;
        rows(component, is_alone)
    });
    let lines: Vec<String> = [
        format!("|{head} key | default | values | meaning |"),
        line.to_owned(),
    ]
    .into_iter()
    .chain(rows)
    .collect();
    Ok(lines.join("\n"))
}

/// A row for each key; the first one names the component, unless it is the only one.
fn rows(component: &ComponentInfo, is_alone: bool) -> Vec<String> {
    let mut rows = Vec::new();
    for (at, key) in component.keys.iter().enumerate() {
        let id = match at {
            _ if is_alone => String::new(),
            0 => format!(" `{}` |", component.id),
            _ => " |".to_owned(),
        };
        rows.push(format!(
            "|{id} `{}` | {} | {} | {} |",
            key.name,
            default(key),
            values(key),
            key.about
        ));
    }
    if rows.is_empty() && !is_alone {
        rows.push(format!("| `{}` | | | | no keys |", component.id));
    }
    rows
}

fn default(key: &KeyDoc) -> String {
    match key.default() {
        None => "required".to_owned(),
        Some("null") => "none".to_owned(),
        Some(json) => json.trim_end_matches(".0").replace('"', "`"),
    }
}

/// The values that a key may have, in words.
fn values(key: &KeyDoc) -> String {
    if !key.choices.is_empty() {
        let choices: Vec<&str> = key.choices.iter().map(|name| name.as_str()).collect();
        return format!("`{}`", choices.join("`, `"));
    }
    let words = key.wanted.trim_start_matches("a ").to_owned();
    match Limits::from(key.limits).in_short(key.limits.whole) {
        Some(limits) => format!("{}, {limits}", words.trim_end_matches(" from 0 up")),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    /// Pays nothing.
    #[component(Reward, id = "pages.reward")]
    struct Nothing {
        /// A share.
        #[key(default = 0.5, at_least = 0, at_most = 1)]
        share: f32,
        /// A word.
        #[key]
        word: String,
    }

    impl Reward for Nothing {
        fn score(
            &mut self,
            _: &mut Ctx<'_>,
            _: &Rollout<'_>,
            _: &mut [f32],
        ) -> Result<(), PluginError> {
            let _ = (self.share, &self.word);
            Ok(())
        }
    }

    #[test]
    fn writes_a_table_between_its_comments() {
        let page = "before\n<!-- keys: reward pages.reward -->\nold\n<!-- end of keys -->\nbehind";
        let expected = "before\n<!-- keys: reward pages.reward -->\n\n\
                        | key | default | values | meaning |\n|---|---|---|---|\n\
                        | `share` | 0.5 | number, between 0 and 1 | A share. |\n\
                        | `word` | required | string | A word. |\n\n<!-- end of keys -->\nbehind";
        assert_eq!(with_tables(page).as_deref(), Ok(expected));
        assert_eq!(with_tables(expected).as_deref(), Ok(expected));
        let unknown = with_tables("<!-- keys: reward acme.none -->\n<!-- end of keys -->");
        assert_eq!(unknown, Err("there is no reward `acme.none`".to_owned()));
    }
}
