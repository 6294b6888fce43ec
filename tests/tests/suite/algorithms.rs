//! The built-in recipes, batches as TRL counts them, dynamic sampling, the entropy bonus, the
//! sampler's own distribution.

use std::collections::BTreeSet;

use tests::{Folder, RunDir};

use crate::{FOUR_STEPS, FROM_THE_FIRST_STEP, ONE_STEP, split};

const REUSED: &str = "--set train.num_iterations=2";

#[test]
fn every_recipe_trains_differently() {
    let folder = Folder::new();
    let recipes = "grpo dr_grpo bnpo dapo gspo luspo cispo sapo vespo rloo reinforce reinforce_plus_plus \
        reinforce_plus_plus_baseline";
    let mut weights = BTreeSet::new();
    for recipe in recipes.split(' ') {
        // At five times the good rate the ratio of a reused rollout leaves 1 by more than a clip
        // allows.
        let rate = "--set train.learning_rate=5e-4 --set train.warmup_ratio=0";
        let run = folder.train(
            recipe,
            &format!("--set recipe={recipe} {REUSED} {FOUR_STEPS} {rate}"),
        );
        assert!(
            run.metric("loss").iter().all(|loss| loss.is_finite()),
            "{recipe}"
        );
        assert!(
            weights.insert(run.weights()),
            "{recipe} is one of those before"
        );
    }
}

#[test]
fn every_estimator_measures_the_distance_from_the_reference() {
    let folder = Folder::new();
    for estimator in ["k1", "k2", "k3"] {
        let args = format!(
            "--set recipe=cispo --set objective.beta=0.1 --set objective.kl_estimator={estimator}"
        );
        let run = folder.train(estimator, &format!("{args} {REUSED} {FOUR_STEPS}"));
        assert_eq!(
            run.metric("kl")[0],
            0.0,
            "the policy is its own reference yet"
        );
        assert!(run.metric("kl")[2] != 0.0, "{estimator}");
    }
}

#[test]
fn ratios_are_exactly_one_on_policy() {
    let folder = Folder::new();
    // A clip range of 0 clips every ratio that is not exactly 1.
    let args = format!("--set objective.epsilon=0 {FOUR_STEPS}");
    for (name, extra) in [
        ("whole", ""),
        ("split", &split(12)),
        ("warm", "--set train.loss_temperature=1.3"),
    ] {
        let run = folder.train(name, &format!("{args} {extra}"));
        assert_eq!(run.metric("clip_ratio/region_mean"), [0.0; 4], "{name}");
    }
    let reused = folder.train(
        "reused",
        &format!("{args} {REUSED} --set train.warmup_ratio=0"),
    );
    let held = reused.metric("clip_ratio/region_mean");
    assert!(
        held[0] == 0.0 && held[1] > 0.0 && held[2] == 0.0 && held[3] > 0.0,
        "{held:?}"
    );
}

#[test]
fn batches_are_counted_as_trl_counts_them() {
    let folder = Folder::new();
    let micro =
        "--set train.per_device_train_batch_size=12 --set train.gradient_accumulation_steps=2";
    let args = format!("{FOUR_STEPS} {micro}");
    // Two optimizer steps of 24 completions from each rollout of 48.
    let passes = folder.train(
        "passes",
        &format!("{args} --set train.steps_per_generation=4"),
    );
    let size = folder.train(
        "size",
        &format!("{args} --set train.generation_batch_size=48"),
    );
    passes.assert_same_files(&size);
    assert_eq!(
        passes.metric("reward")[0],
        passes.metric("reward")[1],
        "one rollout feeds two steps"
    );
    assert_ne!(passes.metric("reward")[1], passes.metric("reward")[2]);
    let split =
        "--set train.per_device_train_batch_size=24 --set train.gradient_accumulation_steps=1";
    let whole = folder.train(
        "whole",
        &format!("{FOUR_STEPS} {split} --set train.steps_per_generation=2"),
    );
    assert!(
        passes.largest_difference(&whole) < 1e-6,
        "a split changes the order of additions and nothing else"
    );
}

#[test]
fn weights_of_rewards_mean_the_same_everywhere() {
    let folder = Folder::new();
    let run = |name: &str, [first, second, advantage]: [&str; 3]| {
        let rewards = format!(r#"[{{use="number"{first}}},{{use="regex",pattern="1"{second}}}]"#);
        let sums = r#"use="grpo.advantage",multi_objective_aggregation="normalize_then_sum""#;
        folder.train(
            name,
            &format!("{ONE_STEP} {FROM_THE_FIRST_STEP} --set reward={rewards} --set advantage={{{sums}{advantage}}}"),
        )
    };
    let given = run("rewards", [",weight=0.5", ",weight=2", ""]);
    given.assert_same(&run("advantage", ["", "", ",reward_weights=[0.5,2]"]));
    given.assert_same(&run("both", ["", ",weight=2", ",reward_weights=[0.5,2.0]"]));
    let [sum, number, regex] =
        ["reward", "rewards/number/mean", "rewards/regex/mean"].map(|name| given.metric(name)[0]);
    assert!(
        regex > 0.0 && (sum - 0.5 * number - 2.0 * regex).abs() < 1e-6,
        "{sum} {number} {regex}"
    );
}

#[test]
fn replaces_groups_without_a_difference() {
    let folder = Folder::new();
    let args = format!("--set rollout.filter_groups=true {FOUR_STEPS} --set train.save_steps=2");
    let whole = folder.assert_resumes(&args, [2]);
    assert_eq!(whole.metric("frac_reward_zero_std"), [0.0; 4]);
    assert_eq!(
        whole.metric("dynamic_sampling/groups_without_difference"),
        [0.0; 4]
    );
    assert!(whole.metric("dynamic_sampling/dropped_groups")[0] >= 1.0);
    assert!(whole.metric("dynamic_sampling/num_gen_batches")[0] >= 2.0);
    let plain = folder.train("plain", FOUR_STEPS);
    assert!(
        plain
            .metric("frac_reward_zero_std")
            .iter()
            .any(|&share| share > 0.0),
        "there is something to drop"
    );
    assert!(
        plain.metric("num_tokens")[3] < whole.metric("num_tokens")[3],
        "what is dropped was sampled too"
    );
    // At the limit, groups without a difference fill the rest.
    let limited = folder.train(
        "limited",
        &format!("{args} --set rollout.max_num_gen_batches=1"),
    );
    assert_eq!(limited.metric("dynamic_sampling/num_gen_batches"), [1.0; 4]);
    assert_eq!(limited.metric("dynamic_sampling/dropped_groups"), [0.0; 4]);
    let groups = limited.metric("dynamic_sampling/groups_without_difference");
    assert!(groups.iter().any(|&groups| groups > 0.0), "{groups:?}");
    assert_eq!(
        plain.metric("reward")[0],
        limited.metric("reward")[0],
        "the same completions in another order"
    );
}

#[test]
fn an_entropy_bonus_keeps_entropy_up() {
    let folder = Folder::new();
    let args = format!("{FOUR_STEPS} --set train.warmup_ratio=0 --set train.learning_rate=3e-4");
    let none = folder.train("none", &args);
    let said = folder.train("said", &format!("{args} --set train.entropy_coef=0"));
    said.assert_same(&none);
    let some = folder.train("some", &format!("{args} --set train.entropy_coef=5"));
    let last = |run: &RunDir| run.metric("entropy")[3];
    assert!(
        last(&some) > 1.1 * last(&none),
        "{} against {}",
        last(&some),
        last(&none)
    );
    let (loss, policy) = (some.metric("loss"), some.metric("policy_loss"));
    for (step, entropy) in some.metric("entropy").iter().enumerate() {
        assert!(
            (policy[step] - 5.0 * entropy - loss[step]).abs() < 1e-6,
            "step {step}"
        );
    }
    assert!(none.metric("policy_loss").is_empty());
    let split = folder.train(
        "split",
        &format!("{args} --set train.entropy_coef=5 {}", split(12)),
    );
    assert!(some.largest_difference(&split) < 3e-6);
}

#[test]
fn the_loss_can_use_the_samplers_distribution() {
    let folder = Folder::new();
    let args =
        format!("{FOUR_STEPS} --set rollout.temperature=0.9 --set train.loss_temperature=0.9");
    let truncated = format!("{args} --set rollout.top_k=6 --set rollout.top_p=0.9");
    let farthest = |run: &RunDir| {
        run.metric("sampling/sampling_logp_difference/max")
            .into_iter()
            .fold(0.0, f64::max)
    };
    let full = folder.train("full", &truncated);
    let sampler = folder.train(
        "sampler",
        &format!("{truncated} --set train.loss_distribution=sampler"),
    );
    assert!(farthest(&full) > 0.05, "{}", farthest(&full));
    assert!(farthest(&sampler) < 1e-4, "{}", farthest(&sampler));
    assert_ne!(full.weights(), sampler.weights());
    let plain = folder.train("plain", &args);
    let same = folder.train(
        "same",
        &format!("{args} --set train.loss_distribution=sampler"),
    );
    assert_eq!(plain.weights(), same.weights(), "nothing is truncated");
}
