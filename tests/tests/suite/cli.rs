//! The command line: help, listings, and what the shipped plugins do out of the box.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Stdio;

use insta::assert_snapshot;
use tests::{Folder, names};

use crate::FOUR_STEPS;

#[test]
fn help() {
    assert_snapshot!(Folder::new().said("--help"), @"
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
    let train = "--config, --set, mask.0., --plugin, CAPO_PLUGIN_PATH, native code with your rights, --device, --output-dir, runs/, \
        --resume, --stop-after, embedded arithmetic task, host train --plugin libcapo.so, metrics.jsonl, Ctrl-C and SIGTERM, \
        --allow-more-memory";
    for (command, mentioned) in [
        ("train", train),
        ("eval", "--config, --set, --plugin, --model, --num-prompts, --output, Hugging Face, embedded:"),
        ("sft", "--config, --set, --output-dir, worked solutions"),
        ("generate", "--model, --temperature, --top-k, --top-p, --max-completion-length, chat template"),
        ("score", "--model, --input, --out, --batch-tokens, completion_ids, logps"),
        ("check", "--json, --only, --set, --fuzz, --seed, --reproduce, --timeout, --list, built in"),
        ("compare-masks", "--config, --set, --mask, --plugin, --target-rate, --out, one token in fifty"),
        ("report", "--out, FILE.html, runs/*, standard error"),
        ("runs", "--json, runs"),
        ("plugins", "--plugin, CAPO_PLUGIN_PATH, component, recipe"),
    ] {
        let help = Folder::new().said(&format!("{command} --help"));
        for words in mentioned.split(", ") {
            assert!(help.contains(words), "`host {command} --help` does not mention `{words}`:\n{help}");
        }
    }
}

#[test]
fn version_and_wrong_words() {
    let folder = Folder::new();
    assert_snapshot!(folder.said("--version").trim_end(), @"host 0.1.0");
    assert!(folder.refused("trian").starts_with("unrecognized subcommand 'trian'"));
    assert!(folder.refused("sweep x").contains("`host replay --sweep`"));
    assert!(folder.refused("train --pluggin x").contains("a similar argument exists: '--plugin'"));
    assert!(folder.refused("train --stop-after soon").contains("invalid value 'soon' for '--stop-after <STEP>'"));
    assert_eq!(folder.host("").code, Some(2));
}

/// Where the component `id` comes from: a plugin whose name begins it, or `host` itself.
fn origin_of(id: &str) -> String {
    match id.split_once('.') {
        Some((plugin @ ("capo" | "drcapo" | "reincapo"), _)) => format!("{plugin} 0.1.0, `BUILD/lib{plugin}.so`"),
        None if id != "reward_model" => "capo-rewards 0.1.0, built in".to_owned(),
        _ => "host 0.1.0, built in".to_owned(),
    }
}

#[test]
fn listing_of_the_shipped_plugins() {
    let args = "plugins --plugin libcapo.so --plugin libdrcapo.so --plugin libreincapo.so";
    let said = Folder::new().said(args);
    let mut listed = String::new();
    let mut id = "";
    for line in said.lines() {
        let words = line.trim_start();
        match words.strip_prefix("from ") {
            Some(origin) => assert_eq!(origin, origin_of(id), "{id}"),
            None => writeln!(listed, "{line}").unwrap(),
        }
        if line.len() - words.len() == 2 {
            id = words.split(' ').next().unwrap();
        }
    }
    assert_snapshot!(listed, @"
    reward
      command                  what an external program says of each completion, over JSON lines
                               keys: command, timeout, concurrency, max_restarts
      exact_match              1 where a completion ends with the dataset's answer, else 0
                               keys: answer_separator
      format                   1 where a completion has its thoughts and its answer between tags
                               keys: style
      math                     1 where a completion's answer says mathematically what the dataset's says
                               keys: anchored
      number                   1 where a completion's number is the dataset's, else 0
                               keys: answer_separator, tolerance
      regex                    what a completion earns that matches a pattern
                               keys: pattern, full_match, reward, otherwise
      reward_model             what a model that scores texts gives prompt and completion
                               keys: model_name_or_path, label, max_length, batch_size, add_special_tokens, device
      soft_overlong            0 down to -1 over the last tokens before the length limit
                               keys: max_completion_len, soft_punish_cache

    advantage
      capo.advantage           (reward - group mean) / (group std + epsilon)
                               keys: epsilon, scale_rewards, multi_objective_aggregation, reward_weights
      dr_grpo.advantage        reward - group mean
                               no keys
      drcapo.advantage         reward - group mean
                               no keys
      grpo.advantage           (reward - group mean) / (group std + epsilon)
                               keys: epsilon, scale_rewards, multi_objective_aggregation, reward_weights
      reincapo.advantage       the reward itself
                               keys: normalize_advantages
      reinforce.advantage      the reward itself
                               keys: normalize_advantages
      reinforce_plus_plus.advantage returns of each token, standardised over all tokens
                               keys: baseline, gamma, beta
      rloo.advantage           reward - mean of the group's other rewards
                               keys: normalize_advantages, reward_clip_range, beta

    objective
      bnpo.objective           clipped surrogate, mean over all tokens
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      capo.objective           clipped surrogate, mean over completions of their means
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      cispo.objective          policy gradient weighted by ratios with a limit
                               keys: epsilon_high, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      dapo.objective           clipped surrogate with more room above, mean over all tokens
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      dr_grpo.objective        clipped surrogate, sum over a fixed length
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      drcapo.objective         clipped surrogate, sum over a fixed length
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      grpo.objective           clipped surrogate, mean over completions of their means
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      gspo.objective           clipped surrogate with one ratio per completion
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      luspo.objective          clipped surrogate with one ratio per completion, which counts by its length
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      reincapo.objective       policy gradient, mean over completions of their means
                               keys: beta, kl_estimator, reduction
      reinforce.objective      policy gradient, mean over completions of their means
                               keys: beta, kl_estimator, reduction
      rloo.objective           clipped surrogate of whole completions
                               keys: epsilon, epsilon_high, delta, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      sapo.objective           surrogate with a soft gate in place of the clip
                               keys: sapo_temperature_pos, sapo_temperature_neg, importance_sampling_level, beta, kl_estimator, use_bias_correction_kl, reduction
      vespo.objective          policy gradient weighted smoothly by each completion's ratio
                               keys: vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg, vllm_importance_sampling_mode, vllm_importance_sampling_clip_max, vllm_importance_sampling_clip_min, beta, kl_estimator, use_bias_correction_kl, reduction

    mask
      capo.curvature           drops tokens whose predicted step moves objective or policy too far
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, hessian_threshold, hessian_interval, hessian_range, target_rejection_rate, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
      drcapo.curvature         drops tokens whose predicted step moves objective or policy too far
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, hessian_threshold, hessian_interval, hessian_range, target_rejection_rate, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
      reincapo.curvature       drops tokens whose predicted step moves objective or policy too far
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, hessian_threshold, hessian_interval, hessian_range, target_rejection_rate, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage

    weight
      capo.curvature-weight    lets tokens whose predicted step moves the policy too far count less
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
      drcapo.curvature-weight  lets tokens whose predicted step moves the policy too far count less
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage
      reincapo.curvature-weight lets tokens whose predicted step moves the policy too far count less
                               keys: semantics, granularity, signal, assign, optimizer, adam_beta1, adam_beta2, adam_epsilon, moments, threads, batch_shifts, fisher_threshold, feature, probabilities, temperature, outside_action, token_gradient, subset_weights, curvature_average, moment_input, moment_update, untouched_rows, empty_state, rejected_batch, state_dtype, policy_shift, objective_shift, zero_advantage

    recipe
      bnpo                     group-normalised advantage, clipped surrogate over all tokens, no mask (built in)
      capo                     GRPO with the curvature mask, as published; capo-soft holds at rates where it collapses (`BUILD/libcapo.so`)
      capo-soft                GRPO with curvature weights, remembered by the optimizer (`BUILD/libcapo.so`)
      cispo                    group-normalised advantage, policy gradient by limited ratios, no mask (built in)
      dapo                     group-normalised advantage, a clip with more room above, over all tokens, no mask (built in)
      dr_grpo                  centred advantage, fixed-length reduction, no mask (built in)
      drcapo                   Dr.GRPO with the curvature mask, as published; drcapo-soft holds at rates where it collapses (`BUILD/libdrcapo.so`)
      drcapo-soft              Dr.GRPO with curvature weights, remembered by the optimizer (`BUILD/libdrcapo.so`)
      grpo                     group-normalised advantage, clipped surrogate, no mask (built in)
      gspo                     group-normalised advantage, one clipped ratio per completion, no mask (built in)
      luspo                    group-normalised advantage, one clipped ratio per completion, which counts by its length, no mask (built in)
      reincapo                 REINFORCE with the curvature mask, as published; a governor holds at rates where it collapses (`BUILD/libreincapo.so`)
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
fn the_shipped_plugins_train_and_resume() {
    let mut weights = BTreeSet::new();
    for recipe in ["grpo", "capo", "drcapo", "reincapo"] {
        let plugin = if recipe == "grpo" { String::new() } else { format!("--plugin lib{recipe}.so") };
        let folder = Folder::new();
        let args = "--set train.save_steps=0 --set train.max_steps=6 --set eval.num_prompts=16 --set eval.eval_steps=2";
        let run = folder.assert_resumes(&format!("{plugin} {args}"), [2]);
        assert_eq!((run.metrics().len(), run.checkpoints()), (6, vec![6]));
        let config = run.text("config.toml");
        assert!(config.starts_with(&format!("recipe = \"{recipe}\"\n")), "{config}");
        assert_eq!(run.metric("step_skipped"), [0.0; 6]);
        assert!(weights.insert(run.weights()), "{recipe} is one of those before");
        if recipe != "grpo" {
            assert!(run.metric(&format!("{recipe}.curvature/m_f_batch"))[1..].iter().all(|&m_f| m_f > 0.0));
            let rejected = run.metric("mask/rejection_rate");
            assert!(rejected.iter().all(|rate| (0.0..0.5).contains(rate)), "{recipe}: {rejected:?}");
        }
    }
}

#[test]
fn a_dry_run_says_what_a_run_takes_and_writes_nothing() {
    let folder = Folder::new();
    let args = "train --plugin libcapo.so --set train.max_steps=4 --set train.per_device_train_batch_size=16 --set train.gradient_accumulation_steps=3";
    let told = folder.said(&format!("{args} --dry-run"));
    assert!(names(folder.path()).is_empty(), "nothing is written");
    for words in [
        "masks      capo.curvature",
        "run        runs/capo-seed42 (4 steps of 48 completions",
        "memory     about ",
        "  the optimizer's moments",
        "time       about ",
        " if every completion has its full length (1,536 tokens a step): 4 steps of ",
        " and 2 evaluations of ",
        "max_steps = 4",
    ] {
        assert!(told.contains(words), "no `{words}` in\n{told}");
    }
    // The settings that it prints are those that the run writes down, with those that are left out there.
    let settings = told.split_once("its settings, in full:\n\n").unwrap().1;
    let _ran = folder.train("run", args.strip_prefix("train ").unwrap());
    let written = folder.text("run/config.toml");
    let [told, written] = [settings, &written].map(|text| host::run::settings::keys(text).unwrap());
    assert!(written.iter().all(|(key, value)| told.get(key) == Some(value)), "{told:?}\n{written:?}");
    for key in capo_plugin::known_keys::<host::config::TrainConfig>().unwrap() {
        assert!(told.contains_key(&format!("train.{key}")) || settings.contains(&format!("train.{key},")), "no {key}");
    }
    folder.write("full.toml", settings);
    let again = folder.said("train --config full.toml --dry-run --plugin libcapo.so");
    assert!(again.ends_with(settings), "{again}");
    let refused = folder.refused(&format!("{args} --dry-run --set data.dataset_name=nowhere"));
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
    let documented = "answer benchmark completion correct extracted prompt reward rewards sample tokens truncated";
    assert_eq!(names.join(" "), documented);
    assert_eq!((&graded[3]["benchmark"], &graded[3]["prompt"]), (&"held-out".into(), &3.into()));
}

#[test]
fn sft_refuses_bad_input() {
    let folder = Folder::new();
    assert_snapshot!(folder.refused("sft --output-dir out --set train.max_step=1"), @"`[train]` of `--set`: unknown key `max_step` (did you mean `max_steps`?)");
    let row = |solution: usize| {
        serde_json::json!({"prompt": "1+1=", "answer": "2", "solution": "1".repeat(solution)}).to_string()
    };
    let sft = "sft --output-dir out --set data={dataset_name=\"rows.jsonl\"} --set eval.num_prompts=0 --set train.max_steps=1";
    folder.write("rows.jsonl", format!("{}\n{}\n", row(1), row(5 << 20)));
    assert_snapshot!(folder.refused(sft), @"bad row at line 2 of `rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): a text of 5242880 bytes has more tokens than the model has positions, 64 (shorten `111111111111111111111111111111111111111111111111111111111111…`)");
    folder.write("taken/file", "");
    assert_snapshot!(folder.refused("sft --output-dir taken"), @"`taken` exists already (choose another `--output-dir`)");
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
