//! Groups runs into series: runs of one series differ only in the seed. Of several runs with one
//! seed the longest counts.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::found::FoundRun;

/// Runs whose settings differ only in the seed.
#[derive(Debug, PartialEq)]
pub struct Group {
    /// Name that distinguishes the group from the others.
    pub name: String,
    /// Indices of the group's runs, one for each seed.
    pub runs: Vec<usize>,
}

/// True if runs of one series may differ in the setting `key`.
fn is_aside(key: &str) -> bool {
    // A run writes the day on which it begins into the settings of a chat.
    ["train.seed", "data.date"].contains(&key)
        || key.starts_with("logging.")
        || key.starts_with("warnings.")
}

/// The groups, ordered by their first runs.
pub fn group(runs: &[FoundRun]) -> Vec<Group> {
    let settings: Vec<BTreeMap<&str, &str>> = runs.iter().map(told).collect();
    let mut groups: Vec<Group> = Vec::new();
    for (at, of) in settings.iter().enumerate() {
        // Runs whose settings cannot be read form no series.
        let same = groups
            .iter_mut()
            .find(|group| !of.is_empty() && settings[group.runs[0]] == *of);
        match same {
            Some(group) => add(runs, group, at),
            None => groups.push(Group {
                name: String::new(),
                runs: vec![at],
            }),
        }
    }
    let firsts: Vec<usize> = groups.iter().map(|group| group.runs[0]).collect();
    let mut used = BTreeSet::new();
    for group in &mut groups {
        let name = name(runs, &settings, &firsts, group);
        let numbered = (2..).map(|number: u32| format!("{name} ({number})"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        group.name = names.find(|name| used.insert(name.clone())).unwrap_or(name);
    }
    groups
}

/// Adds a run to its group. It takes the place of a shorter run with its seed, since equal runs are
/// no more evidence than one.
fn add(runs: &[FoundRun], group: &mut Group, at: usize) {
    let run = &runs[at];
    let seed = run.whole("train.seed");
    let with_seed = group
        .runs
        .iter_mut()
        .find(|other| runs[**other].whole("train.seed") == seed);
    match with_seed {
        Some(other) if runs[*other].lines.steps.len() < run.lines.steps.len() => *other = at,
        Some(_) => {}
        None => group.runs.push(at),
    }
}

fn told(run: &FoundRun) -> BTreeMap<&str, &str> {
    let told = run.settings.iter().filter(|(key, _)| !is_aside(key));
    told.map(|(key, value)| (key.as_str(), value.as_str()))
        .collect()
}

/// Name of a group. It is the recipe, if no other group has it. Otherwise a single run keeps its
/// own name, and several seeds get the settings that distinguish them from the groups with the same
/// recipe, or the name of their first run and the number of the others.
fn name(
    runs: &[FoundRun],
    settings: &[BTreeMap<&str, &str>],
    firsts: &[usize],
    group: &Group,
) -> String {
    let first = group.runs[0];
    let first_name = &runs[first].name;
    let recipe = runs[first].setting("recipe");
    if let Some(recipe) = recipe.filter(|_| firsts.len() > 1) {
        let of_recipe: Vec<&BTreeMap<&str, &str>> = firsts
            .iter()
            .filter(|other| runs[**other].setting("recipe").as_ref() == Some(&recipe))
            .map(|other| &settings[*other])
            .collect();
        if of_recipe.len() == 1 {
            return recipe;
        }
        let apart = distinguished(&recipe, &settings[first], &of_recipe);
        if let Some(apart) = apart.filter(|_| group.runs.len() > 1) {
            return apart;
        }
    }
    match group.runs.len() {
        1 => first_name.clone(),
        2 => format!("{first_name} and another seed"),
        several => format!("{first_name} and {} other seeds", several - 1),
    }
}

/// Largest number of settings in a name.
const MOST_KEYS: usize = 2;

/// The recipe with the few settings by which its group differs from others; `None` if they are
/// many.
fn distinguished(
    recipe: &str,
    own: &BTreeMap<&str, &str>,
    all: &[&BTreeMap<&str, &str>],
) -> Option<String> {
    let keys: BTreeSet<&str> = all.iter().flat_map(|one| one.keys().copied()).collect();
    let mut name = recipe.to_owned();
    let mut count = 0;
    for key in keys {
        if all.iter().any(|one| one.get(key) != own.get(key)) {
            let last = key.rsplit('.').next().unwrap_or(key);
            let value = own.get(key).copied().unwrap_or("not set");
            name += &format!(", {last} {value}");
            count += 1;
        }
    }
    (1..=MOST_KEYS).contains(&count).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::found::Lines;

    fn run(name: &str, settings: &[(&str, &str)]) -> FoundRun {
        FoundRun::of(name, settings, Lines::default())
    }

    fn names(runs: &[FoundRun]) -> Vec<(String, Vec<usize>)> {
        group(runs)
            .into_iter()
            .map(|group| (group.name, group.runs))
            .collect()
    }

    #[test]
    fn seeds_are_one_series() {
        let of = |recipe, seed, rate: &str| {
            let date = (
                "data.date",
                if seed == "1" {
                    "2026-07-31"
                } else {
                    "2026-08-01"
                },
            );
            let settings = [
                ("recipe", recipe),
                ("train.seed", seed),
                ("train.learning_rate", rate),
                date,
            ];
            run(&format!("{rate}-{seed}"), &settings)
        };
        let (grpo, capo) = ("\"grpo\"", "\"capo\"");
        let runs = [
            of(grpo, "1", "0.1"),
            of(capo, "1", "0.1"),
            of(grpo, "2", "0.1"),
        ];
        assert_eq!(
            names(&runs),
            [("grpo".into(), vec![0, 2]), ("capo".into(), vec![1])]
        );
        let runs = [
            of(grpo, "1", "0.1"),
            of(capo, "1", "0.1"),
            of(grpo, "2", "0.2"),
        ];
        let expected = ["0.1-1", "capo", "0.2-2"];
        assert_eq!(
            names(&runs)
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>(),
            expected
        );
        let runs = [
            of(grpo, "1", "0.1"),
            of(grpo, "2", "0.2"),
            of(grpo, "2", "0.1"),
        ];
        let expected = [
            ("grpo, learning_rate 0.1".into(), vec![0, 2]),
            ("0.2-2".into(), vec![1]),
        ];
        assert_eq!(names(&runs), expected);
    }

    /// An equal run is no more evidence; the longer of two counts.
    #[test]
    fn one_run_counts_for_a_seed() {
        let of = |name, seed, steps: u64| {
            let lines: String = (1..=steps)
                .map(|step| format!("{{\"step\":{step}}}\n"))
                .collect();
            FoundRun::of(
                name,
                &[("train.seed", seed), ("train.max_steps", "4")],
                Lines::parse(lines.as_bytes()).unwrap(),
            )
        };
        let runs = [of("a", "42", 2), of("again", "42", 4), of("copy", "42", 4)];
        assert_eq!(names(&runs), [("again".into(), vec![1])]);
        let runs = [of("a", "42", 4), of("again", "42", 4), of("b", "1", 4)];
        assert_eq!(names(&runs), [("a and another seed".into(), vec![0, 2])]);
    }

    #[test]
    fn runs_without_settings_stay_apart() {
        assert_eq!(
            names(&[run("a", &[]), run("a", &[])]),
            [("a".into(), vec![0]), ("a (2)".into(), vec![1])]
        );
        assert_eq!(
            names(&[run("one", &[("recipe", "\"grpo\"")])]),
            [("one".into(), vec![0])]
        );
    }
}
