//! The command line: help, listings, and what the shipped plugins do out of the box.

use std::process::Stdio;

use insta::assert_snapshot;
use tests::Folder;
use tests::artifacts::workspace;

use crate::FOUR_STEPS;
use crate::run_directory::names;

/// Asserts that the help of `command` mentions each of `words`.
fn help_mentions(command: &str, words: &[&str]) {
    let help = Folder::new().host(&format!("{command} --help")).succeeded().stdout;
    for word in words {
        assert!(help.contains(word), "`host {command} --help` does not mention `{word}`:\n{help}");
    }
}

#[test]
fn help() {
    assert_snapshot!(Folder::new().host("--help").succeeded().stdout, @"
    Reinforcement learning of language models, with components that load at run time

    Usage: host [OPTIONS] <COMMAND>

    Commands:
      train          Train a policy on verifiable rewards
      eval           Measure a model: benchmarks, or held-out accuracy
      sft            Train a base model on worked solutions
      generate       Complete prompts
      score          Say how probable given completions are to a model
      export         Write a model as a Hugging Face folder
      download       Fetch a model from the Hugging Face Hub into its cache on this machine
      replay         Run masks and weights over recorded batches, to try thresholds without training
      compare-masks  Compare masks on recorded batches: what each rejects when it runs alone
      runs           List runs: how far each is, what it trains, how good it is
      diagnose       Say what went wrong in runs, and what to try
      report         Write a page about runs: charts, settings side by side, completions token by token
      plugins        List every component and recipe: its point, what it does, where it came from
      check          Check that plugins keep the rules of their extension points
      new-plugin     Make the crate of a plugin, which builds and passes its tests as it is
      help           Print this message or the help of the given subcommand(s)

    Options:
          --verbose  Show the whole chain of causes of an error
      -h, --help     Print help
      -V, --version  Print version

    A sweep of thresholds is `host replay --sweep`.
    ");
    let train = [
        "--config",
        "--set",
        "mask.0.",
        "--plugin",
        "CAPO_PLUGIN_PATH",
        "native code with your rights",
        "--device",
        "--output-dir",
        "runs/",
        "--resume",
        "--stop-after",
        "embedded arithmetic task",
        "host train --plugin libcapo.so",
        "metrics.jsonl",
        "Ctrl-C and SIGTERM",
        "--allow-more-memory",
    ];
    help_mentions("train", &train);
    help_mentions(
        "eval",
        &["--config", "--set", "--plugin", "--model", "--num-prompts", "--output", "Hugging Face", "embedded:"],
    );
    help_mentions("sft", &["--config", "--set", "--output-dir", "worked solutions"]);
    help_mentions(
        "generate",
        &["--model", "--temperature", "--top-k", "--top-p", "--max-completion-length", "chat template"],
    );
    help_mentions("score", &["--model", "--input", "--out", "--batch-tokens", "completion_ids", "logps"]);
    help_mentions(
        "check",
        &["--json", "--only", "--set", "--fuzz", "--seed", "--reproduce", "--timeout", "--list", "built in"],
    );
    let compare = ["--config", "--set", "--mask", "--plugin", "--target-rate", "--out", "one token in fifty"];
    help_mentions("compare-masks", &compare);
    help_mentions("report", &["--out", "FILE.html", "runs/*", "standard error"]);
    help_mentions("runs", &["--json", "runs"]);
    help_mentions("plugins", &["--plugin", "CAPO_PLUGIN_PATH", "component", "recipe"]);
}

#[test]
fn version_and_wrong_words() {
    let folder = Folder::new();
    assert_snapshot!(folder.host("--version").succeeded().stdout.trim_end(), @"host 0.1.0");
    assert!(folder.host("trian").refused().starts_with("unrecognized subcommand 'trian'"));
    assert!(folder.host("sweep x").refused().contains("`host replay --sweep`"));
    assert!(folder.host("train --pluggin x").refused().contains("a similar argument exists: '--plugin'"));
    assert!(
        folder.host("train --stop-after soon").refused().contains("invalid value 'soon' for '--stop-after <STEP>'")
    );
    assert_eq!(folder.host("").code, Some(2));
}

#[test]
fn listing_of_the_shipped_plugins() {
    let args = "plugins --plugin libcapo.so --plugin libdrcapo.so --plugin libreincapo.so";
    assert_snapshot!(Folder::new().host(args).succeeded().stdout, @"
    reward
      command                  what an external program says of each completion, over JSON lines
                               keys: command, timeout, concurrency, max_restarts
                               from capo-rewards 0.1.0, built in
      exact_match              1 where a completion ends with the dataset's answer, else 0
                               keys: answer_separator
                               from capo-rewards 0.1.0, built in
      format                   1 where a completion has its thoughts and its answer between tags
                               keys: style
                               from capo-rewards 0.1.0, built in
      math                     1 where a completion's answer says mathematically what the dataset's says
                               keys: anchored
                               from capo-rewards 0.1.0, built in
      number                   1 where a completion's number is the dataset's, else 0
                               keys: answer_separator, tolerance
                               from capo-rewards 0.1.0, built in
      regex                    what a completion earns that matches a pattern
                               keys: pattern, full_match, reward, otherwise
                               from capo-rewards 0.1.0, built in
      reward_model             what a model that scores texts gives prompt and completion
                               keys: model_name_or_path, label, max_length, batch_size, add_special_tokens, device
                               from host 0.1.0, built in
      soft_overlong            0 down to -1 over the last tokens before the length limit
                               keys: max_completion_len, soft_punish_cache
                               from capo-rewards 0.1.0, built in

    advantage
      capo.advantage           (reward - group mean) / (group std + epsilon)
                               keys: epsilon, scale_rewards, multi_objective_aggregation, reward_weights
                               from capo 0.1.0, `BUILD/libcapo.so`
      dr_grpo.advantage        reward - group mean
                               no keys
                               from host 0.1.0, built in
      drcapo.advantage         reward - group mean
                               no keys
                               from drcapo 0.1.0, `BUILD/libdrcapo.so`
      grpo.advantage           (reward - group mean) / (group std + epsilon)
                               keys: epsilon, scale_rewards, multi_objective_aggregation, reward_weights
                               from host 0.1.0, built in
      reincapo.advantage       the reward itself
                               keys: normalize_advantages
                               from reincapo 0.1.0, `BUILD/libreincapo.so`
      reinforce.advantage      the reward itself
                               keys: normalize_advantages
                               from host 0.1.0, built in
      reinforce_plus_plus.advantage returns of each token, standardised over all tokens
                               keys: baseline, gamma, beta
                               from host 0.1.0, built in
      rloo.advantage           reward - mean of the group's other rewards
                               keys: normalize_advantages, reward_clip_range, beta
                               from host 0.1.0, built in

    objective
      bnpo.objective           clipped surrogate, mean over all tokens
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      capo.objective           clipped surrogate, mean over completions of their means
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from capo 0.1.0, `BUILD/libcapo.so`
      cispo.objective          policy gradient weighted by ratios with a limit
                               keys: epsilon_high, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      dapo.objective           clipped surrogate with more room above, mean over all tokens
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      dr_grpo.objective        clipped surrogate, sum over a fixed length
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      drcapo.objective         clipped surrogate, sum over a fixed length
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from drcapo 0.1.0, `BUILD/libdrcapo.so`
      grpo.objective           clipped surrogate, mean over completions of their means
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      gspo.objective           clipped surrogate with one ratio per completion
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      luspo.objective          clipped surrogate with one ratio per completion, which counts by its length
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      reincapo.objective       policy gradient, mean over completions of their means
                               keys: beta, kl_estimator, reduction
                               from reincapo 0.1.0, `BUILD/libreincapo.so`
      reinforce.objective      policy gradient, mean over completions of their means
                               keys: beta, kl_estimator, reduction
                               from host 0.1.0, built in
      rloo.objective           clipped surrogate of whole completions
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      sapo.objective           surrogate with a soft gate in place of the clip
                               keys: sapo_temperature_pos, sapo_temperature_neg, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in
      vespo.objective          policy gradient weighted smoothly by each completion's ratio
                               keys: vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg, vllm_importance_sampling_mode, vllm_importance_sampling_clip_max, vllm_importance_sampling_clip_min, beta, kl_estimator, use_bias_correction_kl, reduction
                               from host 0.1.0, built in

    mask
      capo.curvature           drops tokens whose predicted step moves objective or policy too far
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, hessian_threshold, hessian_interval, hessian_range, target_rejection_rate, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
                               from capo 0.1.0, `BUILD/libcapo.so`
      drcapo.curvature         drops tokens whose predicted step moves objective or policy too far
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, hessian_threshold, hessian_interval, hessian_range, target_rejection_rate, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
                               from drcapo 0.1.0, `BUILD/libdrcapo.so`
      reincapo.curvature       drops tokens whose predicted step moves objective or policy too far
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, hessian_threshold, hessian_interval, hessian_range, target_rejection_rate, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
                               from reincapo 0.1.0, `BUILD/libreincapo.so`

    weight
      capo.curvature-weight    lets tokens whose predicted step moves the policy too far count less
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
                               from capo 0.1.0, `BUILD/libcapo.so`
      drcapo.curvature-weight  lets tokens whose predicted step moves the policy too far count less
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
                               from drcapo 0.1.0, `BUILD/libdrcapo.so`
      reincapo.curvature-weight lets tokens whose predicted step moves the policy too far count less
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
                               from reincapo 0.1.0, `BUILD/libreincapo.so`

    recipe
      bnpo                     group-normalised advantage, clipped surrogate over all tokens, no mask (built in)
      capo                     GRPO with the curvature mask (`BUILD/libcapo.so`)
      capo-soft                GRPO with curvature weights, remembered by the optimizer (`BUILD/libcapo.so`)
      cispo                    group-normalised advantage, policy gradient by limited ratios, no mask (built in)
      dapo                     group-normalised advantage, a clip with more room above, over all tokens, no mask (built in)
      dr_grpo                  centred advantage, fixed-length reduction, no mask (built in)
      drcapo                   Dr.GRPO with the curvature mask (`BUILD/libdrcapo.so`)
      drcapo-soft              Dr.GRPO with curvature weights, remembered by the optimizer (`BUILD/libdrcapo.so`)
      grpo                     group-normalised advantage, clipped surrogate, no mask (built in)
      gspo                     group-normalised advantage, one clipped ratio per completion, no mask (built in)
      luspo                    group-normalised advantage, one clipped ratio per completion, which counts by its length, no mask (built in)
      reincapo                 REINFORCE with the curvature mask (`BUILD/libreincapo.so`)
      reincapo-soft            REINFORCE with curvature weights, remembered by the optimizer (`BUILD/libreincapo.so`)
      reinforce                reward as advantage, policy gradient, no mask (built in)
      reinforce_plus_plus      returns standardised over all tokens, clipped surrogate over all tokens, no mask (built in)
      reinforce_plus_plus_baseline rewards less their group's mean, standardised over all tokens, clipped surrogate over all tokens, no mask (built in)
      rloo                     leave-one-out advantage, clipped surrogate of whole completions, no mask (built in)
      sapo                     group-normalised advantage, surrogate with a soft gate, no mask (built in)
      vespo                    group-normalised advantage, policy gradient by each completion's ratio, no mask (built in)
    ");
}

#[test]
fn the_shipped_plugins_train() {
    let folder = Folder::new();
    let mut weights = Vec::new();
    for name in ["capo", "drcapo", "reincapo"] {
        let run = folder.train(name, &format!("--plugin lib{name}.so {FOUR_STEPS} --set train.max_steps=6"));
        let config = std::fs::read_to_string(run.path().join("config.toml")).unwrap();
        assert!(config.starts_with(&format!("recipe = \"{name}\"\n")), "{config}");
        assert_eq!(run.metrics().len(), 6);
        assert_eq!(run.metric("step_skipped"), [0.0; 6]);
        assert!(run.metric(&format!("{name}.curvature/m_f_batch"))[1..].iter().all(|&m_f| m_f > 0.0));
        let rejected = run.metric("mask/rejection_rate");
        assert!(rejected.iter().all(|rate| (0.0..0.5).contains(rate)), "{name}: {rejected:?}");
        weights.push(run.weights());
    }
    assert!(weights[0] != weights[1] && weights[1] != weights[2] && weights[0] != weights[2]);
}

#[test]
fn a_dry_run_says_what_a_run_takes_and_writes_nothing() {
    let folder = Folder::new();
    let args = "train --plugin libcapo.so --set train.max_steps=4 --set train.per_device_train_batch_size=16 --set train.gradient_accumulation_steps=3";
    let told = folder.host(&format!("{args} --dry-run")).succeeded().stdout;
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
    for words in [
        "masks      capo.curvature",
        "run        runs/capo-seed42 (4 steps of 48 completions",
        "memory     about ",
        "  the optimizer's moments",
        "max_steps = 4",
    ] {
        assert!(told.contains(words), "no `{words}` in\n{told}");
    }
    // The settings that it prints are those that the run writes down, with those that are left out there.
    let settings = told.split_once("its settings, in full:\n\n").unwrap().1;
    let _ran = folder.train("run", args.strip_prefix("train ").unwrap());
    let written = std::fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    let [told, written] = [settings, &written].map(|text| host::run::settings::keys(text).unwrap());
    assert!(written.iter().all(|(key, value)| told.get(key) == Some(value)), "{told:?}\n{written:?}");
    for key in capo_plugin::known_keys::<host::config::TrainConfig>().unwrap() {
        assert!(told.contains_key(&format!("train.{key}")) || settings.contains(&format!("train.{key},")), "no {key}");
    }
    folder.write("full.toml", settings);
    let again = folder.host("train --config full.toml --dry-run --plugin libcapo.so").succeeded().stdout;
    assert!(again.ends_with(settings), "{again}");
    let refused = folder.host(&format!("{args} --dry-run --set data.dataset_name=nowhere")).refused();
    assert!(refused.contains("no dataset `nowhere`"), "{refused}");
}

#[test]
fn a_run_chooses_a_folder_of_its_own() {
    let folder = Folder::new();
    for name in ["grpo-seed42", "grpo-seed42-2", "grpo-seed42-3"] {
        let outcome = folder.host(&format!("train {FOUR_STEPS} --set train.max_steps=1")).succeeded();
        assert!(outcome.stdout.contains(&format!("run        runs/{name} (1 steps")), "{}", outcome.stdout);
        let files = ["checkpoints", "config.toml", "lock", "metrics.jsonl", "provenance.json"];
        assert!(names(&folder.path().join("runs").join(name)).iter().eq(&files));
    }
}

#[test]
fn a_runs_own_config_repeats_it() {
    let folder = Folder::new();
    let first = folder.train("first", &format!("--plugin libcapo.so {FOUR_STEPS}"));
    first.assert_same_files(&folder.train("second", "--plugin libcapo.so --config first/config.toml"));
}

#[test]
fn evaluation_writes_completions() {
    let folder = Folder::new();
    let outcome = folder.host("eval --num-prompts 16 --output graded.jsonl").succeeded();
    let graded = folder.json_lines("graded.jsonl");
    let right = graded.iter().filter(|line| line["reward"].as_f64().unwrap() > 0.0).count();
    assert_eq!(graded.len(), 16);
    let share = 100.0 * right as f64 / 16.0;
    let right = "right      `exact_match` above 0";
    let held_out = format!("held-out accuracy {share:.1}%  reward {:.3}  (16 prompts, greedy)", share / 100.0);
    assert_eq!(outcome.stdout, format!("{right}\n{held_out}\n"));
    let names: Vec<&str> = graded[0].as_object().unwrap().keys().map(String::as_str).collect();
    let documented = [
        "answer",
        "benchmark",
        "completion",
        "correct",
        "extracted",
        "prompt",
        "reward",
        "rewards",
        "sample",
        "tokens",
        "truncated",
    ];
    assert_eq!(names, documented);
    assert_eq!((&graded[3]["benchmark"], &graded[3]["prompt"]), (&"held-out".into(), &3.into()));
}

#[test]
fn sft_refuses_bad_input() {
    let folder = Folder::new();
    assert_snapshot!(folder.host("sft --output-dir out --set train.max_step=1").refused(), @"`[train]` of `--set`: unknown key `max_step` (did you mean `max_steps`?)");
    assert_snapshot!(folder.host("sft --output-dir out --config absent.toml").refused(), @"config `absent.toml` cannot be read: No such file or directory (os error 2)");
    let row = |solution: usize| {
        serde_json::json!({"prompt": "1+1=", "answer": "2", "solution": "1".repeat(solution)}).to_string()
    };
    // Far too long, and a little.
    let sft = "sft --output-dir out --set data={dataset_name=\"rows.jsonl\"} --set eval.num_prompts=0 --set train.max_steps=1";
    folder.write("rows.jsonl", format!("{}\n{}\n", row(1), row(5 << 20)));
    assert_snapshot!(folder.host(sft).refused(), @"bad row at line 2 of `rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): a text of 5242880 bytes has more tokens than the model has positions, 64 (shorten `111111111111111111111111111111111111111111111111111111111111…`)");
    folder.write("rows.jsonl", format!("{}\n{}\n", row(1), row(2000)));
    assert_snapshot!(folder.host(sft).refused(), @"bad row at line 2 of `rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): a prompt of 4 tokens and its solution of 2001 make 2005, the model has 64 positions (shorten the solution)");
    folder.write("taken/file", "");
    assert_snapshot!(folder.host("sft --output-dir taken").refused(), @"`taken` exists already (choose another `--output-dir`)");
}

#[test]
fn the_config_of_the_readme_has_only_known_keys() {
    let readme = std::fs::read_to_string(workspace().join("README.md")).unwrap();
    let config = readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let folder = Folder::new();
    folder.write("run.toml", config);
    let refused = folder.host("train --config run.toml --plugin libcapo.so").refused();
    assert!(refused.starts_with("no model `Qwen/Qwen2.5-0.5B-Instruct`"), "{refused}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = Folder::new();
    for args in ["plugins --plugin libcapo.so", "eval --num-prompts 4", "train --set train.max_steps=1"] {
        let mut command = folder.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
