//! The recipe that a run takes, and error messages about recipes.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use tests::Folder;

use crate::{ONE_STEP, refused};

/// The recipe and the advantage of a run with ARGS.
fn chosen(args: &str) -> String {
    let (_, config) = sources(args);
    format!("{}, {}", config["recipe"], config["advantage"]["use"])
}

#[test]
fn the_default_recipe_is_grpo_or_that_of_the_plugin() {
    assert_snapshot!(chosen(""), @r#""grpo", "grpo.advantage""#);
    assert_snapshot!(chosen("--plugin libdrcapo.so"), @r#""drcapo", "drcapo.advantage""#);
    assert_snapshot!(chosen("--plugin libdrcapo.so --set recipe=reinforce"), @r#""reinforce", "reinforce.advantage""#);
    // A plugin without a recipe changes nothing by itself.
    assert_snapshot!(chosen("--plugin libmisbehave.so"), @r#""grpo", "grpo.advantage""#);
}

#[test]
fn two_recipes_need_a_choice() {
    assert_snapshot!(chosen("--plugin libcapo.so --plugin libdrcapo.so --set recipe=capo"), @r#""capo", "capo.advantage""#);
    let components = "--set advantage.use=drcapo.advantage --set objective.use=capo.objective";
    let folder = Folder::new();
    let config = folder.write(
        "both.toml",
        config_with("drcapo.advantage", "capo.objective"),
    );
    let both = "--plugin libcapo.so --plugin libdrcapo.so";
    let run = folder.train("run", &format!("{both} --config {config} {ONE_STEP}"));
    assert_eq!(run.metric("reward").len(), 1);
    // `--set` does not choose a recipe: it changes settings after one is chosen.
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
fn lists_the_recipes_of_the_shipped_plugins() {
    for (library, recipes) in host::algorithms::OF_PLUGINS {
        let listed = Folder::new().said(&format!("plugins --plugin {library} --json"));
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let offered = listed["recipes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|recipe| !recipe["origin"].is_null());
        let names: BTreeSet<&str> = offered
            .map(|recipe| recipe["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, recipes.iter().copied().collect(), "{library}");
    }
}

/// The lines of a run's header that say where its settings came from, and its config.
fn sources(args: &str) -> (String, toml::Table) {
    sources_in(&Folder::new(), args)
}

fn sources_in(folder: &Folder, args: &str) -> (String, toml::Table) {
    let said = folder.said(&format!("train --output-dir run {args} {ONE_STEP}"));
    let lines = said.lines().filter(|line| {
        ["config ", "recipe ", "         "]
            .iter()
            .any(|start| line.starts_with(start))
    });
    let config = folder.text("run/config.toml");
    (
        lines.collect::<Vec<_>>().join("\n"),
        config.parse().unwrap(),
    )
}

#[test]
fn a_recipe_sets_only_what_the_user_did_not_set() {
    let (lines, config) = sources("--plugin libtuned.so --set recipe=tuned");
    assert_snapshot!(lines, @r#"
    config     the default config; --set recipe, train.max_steps, eval.num_prompts
    recipe     tuned (libtuned.so): advantage, objective, train.learning_rate = 0.0002, train.warmup_ratio = 0.0, train.lr_scheduler_type = "constant", rollout.temperature = 0.8, reward
               the built-in components at settings of its own
    "#);
    assert_eq!(config["train"]["learning_rate"].as_float(), Some(2e-4));
    assert_eq!(config["rollout"]["temperature"].as_float(), Some(0.8));
    assert_eq!(config["reward"][0]["weight"].as_float(), Some(2.0));
    // A value that the default config sets and the recipe does not stays.
    assert_eq!(
        config["train"]["per_device_train_batch_size"].as_integer(),
        Some(48)
    );
}

#[test]
fn the_users_settings_override_a_recipe() {
    let sets = "--set train.learning_rate=1e-5 --set rollout.temperature=1.0 --set reward=[{use=\"exact_match\",weight=3.0}]";
    // Setting a section sets its keys. Other keys of the section still come from the recipe.
    let (lines, _) = sources(
        "--plugin libtuned.so --set recipe=tuned --set rollout={temperature=1.0,max_completion_length=24}",
    );
    assert!(!lines.contains("rollout.temperature = "), "{lines}");
    let (lines, config) = sources(&format!("--plugin libtuned.so --set recipe=tuned {sets}"));
    assert_snapshot!(lines, @r#"
    config     the default config; --set recipe, train.learning_rate, rollout.temperature, reward, train.max_steps, eval.num_prompts
    recipe     tuned (libtuned.so): advantage, objective, train.warmup_ratio = 0.0, train.lr_scheduler_type = "constant", reward.exact_match.answer_separator = "="
               the built-in components at settings of its own
    "#);
    assert_eq!(config["train"]["learning_rate"].as_float(), Some(1e-5));
    let reward = config["reward"][0].as_table().unwrap();
    assert_eq!(
        (
            reward["weight"].as_float(),
            reward["answer_separator"].as_str()
        ),
        (Some(3.0), Some("="))
    );
}

#[test]
fn a_resume_goes_on_with_what_a_recipe_set() {
    let folder = Folder::new();
    let two = "--set train.max_steps=2 --set eval.num_prompts=0 --set train.save_steps=1 --set recipe=tuned";
    let whole = folder.train("whole", &format!("--plugin libtuned.so {two}"));
    folder.train(
        "halved",
        &format!("--plugin libtuned.so {two} --stop-after 1"),
    );
    let said = folder.said("train --resume halved");
    assert!(
        said.contains("\nconfig     halved/config.toml\n") && !said.contains("\nrecipe "),
        "{said}"
    );
    folder.run_dir("halved").assert_same_files(&whole);
}

#[test]
fn a_recipe_with_only_components_sets_nothing_else() {
    assert_snapshot!(sources("--plugin libtuned.so --set recipe=plain").0, @"
    config     the default config; --set recipe, train.max_steps, eval.num_prompts
    recipe     plain (libtuned.so): advantage, objective
               components alone
    ");
}

#[test]
fn masks_beside_those_of_a_recipe() {
    let both =
        "--plugin libcapo.so --plugin libdrcapo.so --set recipe=capo --mask drcapo.curvature";
    let (lines, config) = sources(&format!(
        "{both} --set mask.drcapo.fisher_threshold=0.5 --set mask.capo.curvature.threads=1"
    ));
    assert_snapshot!(lines, @"
    config     the default config; --set recipe, mask.drcapo.fisher_threshold, mask.capo.curvature.threads, train.max_steps, eval.num_prompts; --mask drcapo.curvature
    recipe     capo (libcapo.so): advantage, objective, mask
               GRPO with the curvature mask, as published; capo-soft holds at rates where it collapses
    ");
    let masks = config["mask"].as_array().unwrap();
    assert_eq!(masks.len(), 2);
    assert_eq!(
        (masks[0]["use"].as_str(), masks[0]["threads"].as_integer()),
        (Some("capo.curvature"), Some(1))
    );
    assert_eq!(masks[1]["use"].as_str(), Some("drcapo.curvature"));
    assert_eq!(masks[1]["fisher_threshold"].as_float(), Some(0.5));
    // The recipe's mask named once more is another instance.
    let twice = "--plugin libcapo.so --mask capo.curvature --set mask.capo.curvature#2.fisher_threshold=0.25";
    let (_, config) = sources(twice);
    for (args, sentence) in [
        (
            twice,
            "the mask `capo.curvature` is named more than once: a token counts only where each of them keeps it",
        ),
        (
            "--plugin libgovernor.so --step-control governor.kl",
            "the step control `governor.kl` is named more than once: each shortens what",
        ),
        (
            "--plugin libmasks.so --set recipe=icepop --weight masks.tis",
            "the weight `masks.tis` is named more than once: a token counts by the product",
        ),
    ] {
        let warned = Folder::new()
            .host(&format!("train {args} --dry-run"))
            .succeeded()
            .stderr;
        assert!(
            warned.starts_with(&format!("warning: {sentence}"))
                && warned.contains("; the recipe `"),
            "{warned}"
        );
    }
    assert_eq!(config["mask"][1]["fisher_threshold"].as_float(), Some(0.25));
    assert!(config["mask"][0].get("fisher_threshold").is_none());
    let (_, config) = sources("--set reward.exact_match.weight=2.0");
    assert_eq!(config["reward"][0]["weight"].as_float(), Some(2.0));
}

#[test]
fn a_config_with_only_components_extends_the_default() {
    let folder = Folder::new();
    folder.write(
        "mask.toml",
        "[[mask]]\nuse = \"capo.curvature\"\nfisher_threshold = 0.5\n",
    );
    let (lines, config) = sources_in(&folder, "--plugin libcapo.so --config mask.toml");
    assert_snapshot!(lines, @"
    config     mask.toml over the default config; --set train.max_steps, eval.num_prompts
    recipe     capo (libcapo.so): advantage, objective
               GRPO with the curvature mask, as published; capo-soft holds at rates where it collapses
    ");
    assert_eq!(
        config["model"]["model_name_or_path"].as_str(),
        Some("embedded:tiny-arithmetic")
    );
    assert_eq!(config["mask"][0]["fisher_threshold"].as_float(), Some(0.5));
    assert_eq!(config["reward"][0]["use"].as_str(), Some("exact_match"));
    // A config with other sections must be complete, and so must an empty one.
    for text in [
        "[train]\nseed = 1\n\n[[mask]]\nuse = \"capo.curvature\"\n",
        "",
    ] {
        folder.write("more.toml", text);
        let sentence = folder.refused("train --plugin libcapo.so --config more.toml");
        assert!(
            sentence.starts_with("`[model]` of `more.toml`: key `model_name_or_path` is missing"),
            "{sentence}"
        );
    }
}
