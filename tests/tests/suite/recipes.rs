//! Which recipe a run takes, and sentences about recipes.

use insta::assert_snapshot;
use tests::Folder;

use crate::ONE_STEP;

/// The sentence of `host train ARGS`.
fn refused(args: &str) -> String {
    Folder::new().host(&format!("train {args}")).refused()
}

/// The recipe and the advantage of a run with ARGS.
fn chosen(args: &str) -> String {
    let run = Folder::new();
    let run = run.train("run", &format!("{args} {ONE_STEP}"));
    let config = std::fs::read_to_string(run.path().join("config.toml")).unwrap();
    let recipe = config.lines().find(|line| line.starts_with("recipe")).unwrap_or("no recipe").to_owned();
    let advantage = config.split_once("[advantage]\n").unwrap().1.lines().next().unwrap().to_owned();
    format!("{recipe}; {advantage}")
}

#[test]
fn without_a_plugin_it_is_grpo_and_with_one_it_is_the_plugins() {
    assert_snapshot!(chosen(""), @r#"recipe = "grpo"; use = "grpo.advantage""#);
    assert_snapshot!(chosen("--plugin libdrcapo.so"), @r#"recipe = "drcapo"; use = "drcapo.advantage""#);
    assert_snapshot!(chosen("--plugin libdrcapo.so --set recipe=reinforce"), @r#"recipe = "reinforce"; use = "reinforce.advantage""#);
    // A plugin without a recipe changes nothing by itself.
    assert_snapshot!(chosen("--plugin libmisbehave.so"), @r#"recipe = "grpo"; use = "grpo.advantage""#);
}

#[test]
fn two_recipes_need_a_choice() {
    assert_snapshot!(refused("--plugin libcapo.so --plugin libdrcapo.so"), @"the plugins carry 2 recipes, `capo` and `drcapo`, and the config does not choose (add `--set recipe=capo`, or name `[advantage]` and `[objective]` in a config)");
    assert_snapshot!(chosen("--plugin libcapo.so --plugin libdrcapo.so --set recipe=capo"), @r#"recipe = "capo"; use = "capo.advantage""#);
    let components = "--set advantage.use=drcapo.advantage --set objective.use=capo.objective";
    let folder = Folder::new();
    let config = folder.write("both.toml", config_with("drcapo.advantage", "capo.objective"));
    let both = "--plugin libcapo.so --plugin libdrcapo.so";
    let run = folder.train("run", &format!("{both} --config {config} {ONE_STEP}"));
    assert_eq!(run.metric("reward").len(), 1);
    // `--set` alone is no choice of a recipe: it changes one after it is chosen.
    assert!(refused(&format!("{both} {components}")).starts_with("the plugins carry 2 recipes"));
}

/// A config that chooses both components.
fn config_with(advantage: &str, objective: &str) -> String {
    let base = "[model]\nmodel_name_or_path = \"embedded:tiny-arithmetic\"\n\n\
        [data]\ndataset_name = \"embedded:arithmetic\"\nmax_prompt_length = 16\n\n[rollout]\nmax_completion_length = 24\n\n\
        [[reward]]\nuse = \"exact_match\"\n";
    format!("{base}\n[advantage]\nuse = \"{advantage}\"\n\n[objective]\nuse = \"{objective}\"\n")
}

#[test]
fn unknown_recipes() {
    assert_snapshot!(refused("--set recipe=grop"), @"recipe `grop` is unknown (did you mean `grpo`?)");
    assert_snapshot!(refused("--set recipe=zzz"), @"recipe `zzz` is unknown (known: `dr_grpo`, `grpo`, `reinforce`; a plugin's recipe needs its `--plugin`)");
    // The plugin that has it is not loaded.
    assert_snapshot!(refused("--set recipe=capo"), @"recipe `capo` is unknown (known: `dr_grpo`, `grpo`, `reinforce`; a plugin's recipe needs its `--plugin`)");
    assert_snapshot!(refused("--set recipe=7"), @"`recipe` in the default config and `--set` is 7 (give a recipe's name as a string)");
}

#[test]
fn recipes_that_are_wrong() {
    assert_snapshot!(refused("--plugin libbad_recipes.so --set recipe=meddling"), @"recipe `meddling` has a section `train` (a recipe holds `advantage`, `objective` and `mask` only)");
    assert_snapshot!(refused("--plugin libbad_recipes.so --set recipe=garbled"), @"recipe `garbled` is not TOML: line 1: unclosed table, expected `]`");
    assert_snapshot!(refused("--plugin libbad_recipes.so --set recipe=absent"), @"`[objective]` names `absent.objective`, which no loaded image offers (known here: `dr_grpo.objective`, `grpo.objective`, `reinforce.objective`; a plugin's components need its `--plugin`)");
    assert_snapshot!(refused("--plugin libbad_recipes.so --set recipe=incomplete"), @r#"`[objective]` is missing from the default config and `--set`, and no recipe fills it in (name a component with `use = "..."`, or take a whole recipe with `recipe = "grpo"`)"#);
}
