//! Conversations as prompts: `data.format = "chat"`, `host generate --chat`, and the files that go
//! with a tokenizer.

use insta::assert_snapshot;
use serde_json::{Value, json};
use tests::{Folder, to_json_lines};

use crate::models::with_model;
use crate::refused::assert_refused;

/// A template of turns: the question, `=`, and the answer with an end token.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no ' ~ m.role) }}{% endif %}\
    {{ '=' if m.role == 'assistant' }}{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}\
    {{ '=' if add_generation_prompt }}{{ '1' if enable_thinking is true }}";

const CHAT: &str = "--set data.dataset_name=chat.jsonl --set data.format=chat";
const TEXT: &str = "--set data.dataset_name=text.jsonl";
const MODEL: &str = "--set model.model_name_or_path=model";
const STEPS: &str = "--set train.max_steps=2 --set eval.num_prompts=0";

/// A folder with the embedded model, a chat template, and the same rows twice: as messages, and as
/// the texts into which the template turns them.
fn folder() -> Folder {
    let folder = with_model();
    folder.write("model/chat_template.jinja", TEMPLATE);
    let rows = |prompt: &dyn Fn(usize) -> Value| {
        let answer = |i| 100 + 2 * i;
        let row = |i| json!({"prompt": prompt(i), "answer": answer(i), "solution": format!("{i}={}", answer(i))});
        to_json_lines((0..40).map(row))
    };
    folder.write("text.jsonl", rows(&|i| json!(format!("{}+{i}=", 100 + i))));
    let user = |content: String| json!({"role": "user", "content": content});
    let chat = |i: usize| match i % 2 {
        0 => json!(format!("{}+{i}", 100 + i)),
        _ => json!([user((100 + i).to_string()), user(format!("+{i}"))]),
    };
    folder.write("chat.jsonl", rows(&chat));
    folder
}

#[test]
fn training_on_conversations_equals_training_on_their_texts() {
    let folder = folder();
    let (chat, text) = (
        folder.train("chat", &format!("{CHAT} {MODEL} {STEPS}")),
        folder.train("text", &format!("{TEXT} {MODEL} {STEPS}")),
    );
    assert_eq!(chat.weights(), text.weights());
    let config = chat.text("config.toml");
    let date = config
        .lines()
        .find(|line| line.starts_with("date = "))
        .expect("the day is written down");
    assert_eq!(date.len(), "date = \"2026-07-31\"".len(), "{date}");
    // A template may ask for the date. A resume uses the day on which the run began.
    std::fs::remove_dir_all(chat.last_checkpoint()).unwrap();
    assert_eq!(folder.resume("chat").weights(), text.weights());
}

#[test]
fn teaching_and_asking_conversations_equals_their_texts() {
    let folder = folder();
    let train = "--set train.max_steps=3 --set train.per_device_train_batch_size=4 --set eval.num_prompts=0 \
        --set model={model_name_or_path=\"model\"}";
    folder.said(&format!("sft --output-dir a {CHAT} {train}"));
    folder.said(&format!("sft --output-dir b {TEXT} {train}"));
    let read = |name: &str| folder.bytes(name);
    assert!(read("a/model.safetensors") == read("b/model.safetensors"));
    assert_eq!(read("a/chat_template.jinja"), TEMPLATE.as_bytes());
    let eval = |more: &str, name: &str| {
        let held_out = format!(
            "--set data={{eval_dataset_name=\"{name}.jsonl\",dataset_name=\"{name}.jsonl\",max_prompt_length=16}} \
                --set rollout.max_completion_length=24 --set reward=[{{use=\"exact_match\"}}]"
        );
        folder.said(&format!(
            "eval --model a --num-prompts 16 --output {name}.out {held_out} {more}"
        ))
    };
    assert_eq!(eval("--set data.format=chat", "chat"), eval("", "text"));
    let completions = |name: &str| -> Vec<Value> {
        folder
            .json_lines(name)
            .iter_mut()
            .map(|line| line["completion"].take())
            .collect()
    };
    assert_eq!(completions("chat.out"), completions("text.out"));
}

#[test]
fn the_embedded_task_can_be_a_conversation() {
    let folder = folder();
    folder.write("plain.jinja", "{{ messages[-1].content }}");
    let plain = "--set data.format=chat --set data.chat_template=plain.jinja";
    let chat = folder.train("chat", &format!("{MODEL} {STEPS} {plain}"));
    assert_eq!(
        chat.weights(),
        folder.train("text", &format!("{MODEL} {STEPS}")).weights()
    );
    let saved = std::fs::read(chat.last_checkpoint().join("chat_template.jinja")).unwrap();
    assert_eq!(
        saved, b"{{ messages[-1].content }}",
        "the model is used with the template that it was trained with"
    );
}

#[test]
fn a_template_may_end_turns_with_another_token() {
    let folder = folder();
    folder.write(
        "model/chat_template.jinja",
        TEMPLATE.replace("eos_token if", "'<pad>' if"),
    );
    let sft = "sft --set train.max_steps=1 --set eval.num_prompts=0 --set model={model_name_or_path=\"model\"}";
    let told = |args: &str| folder.host(args).succeeded().stderr;
    let generate = "generate --chat --max-completion-length 4 1+1 --model";
    let warning = told(&format!("{generate} model"));
    assert_snapshot!(warning.trim_end(), @"warning: the chat template `model/chat_template.jinja` ends answers with `<pad>`, at which no completion ends (set `data.eos_token` to `<pad>`; of `host generate`, `--eos-token`)");
    let by_set = format!("{CHAT} --set data.eos_token=<pad>");
    assert_eq!(told(&format!("{sft} {CHAT} --output-dir a")), warning);
    assert_eq!(told(&format!("{sft} {by_set} --output-dir b")), "");
    let dry = |data: &str| {
        told(&format!(
            "train --dry-run {data} {MODEL} --set eval.num_prompts=0"
        ))
    };
    assert_eq!((dry(CHAT).lines().count(), dry(&by_set).as_str()), (1, ""));
    assert_eq!(
        told(&format!("{generate} model --eos-token <pad>")) + &told(&format!("{generate} b")),
        ""
    );
    // The template's token is taught as the end of texts. Completions also end at the tokenizer's
    // own token.
    assert_eq!(
        folder.json("b/generation_config.json"),
        json!({"eos_token_id": [0, 1]})
    );
    assert_eq!(folder.json("b/tokenizer_config.json")["eos_token"], "<pad>");
    assert_snapshot!(folder.refused("generate --model model --eos-token <end> 1+1"), @"`--eos-token` cannot be used: `<end>` is no token of `model/tokenizer.json` (name one)");
}

#[test]
fn prompts_begin_with_the_tokenizers_own_tokens() {
    let folder = folder();
    let processor = json!({
        "type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<eos>": {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}},
    });
    folder.replace(
        "model/tokenizer.json",
        "\"post_processor\": null",
        &format!("\"post_processor\": {processor}"),
    );
    let rows = String::from_utf8(folder.bytes("text.jsonl")).unwrap();
    folder.write(
        "begun.jsonl",
        rows.replace("\"prompt\":\"", "\"prompt\":\"<eos>"),
    );
    let off = "--set data.add_special_tokens=false";
    let trained = |name: &str, data: &str, more: &str| {
        folder
            .train(
                name,
                &format!("--set data.dataset_name={data}.jsonl {MODEL} {STEPS} {more}"),
            )
            .metric("entropy")
    };
    // A text that begins with the token gets no second one.
    let (ours, begun, twice) = (
        trained("a", "text", ""),
        trained("b", "begun", off),
        trained("c", "begun", ""),
    );
    assert!(
        ours == begun && ours == twice && ours != trained("d", "text", off),
        "{ours:?}"
    );
    let generated = |args: &str| {
        let generate =
            format!("generate --model model --max-completion-length 4 --out out.jsonl {args}");
        let told = folder.host(&generate).succeeded().stderr;
        (
            folder.json_lines("out.jsonl")[0]["prompt_ids"].to_string(),
            told,
        )
    };
    assert_eq!(
        generated("1+1="),
        ("[1,3,12,3,13]".to_owned(), String::new())
    );
    assert_eq!(
        generated("1+1= --no-special-tokens"),
        ("[3,12,3,13]".to_owned(), String::new())
    );
    let (ids, warning) = generated("<eos>1+1=");
    assert_eq!(ids, "[1,3,12,3,13]");
    assert_snapshot!(warning.trim_end(), @"warning: a prompt begins with `<eos>`, which the tokenizer puts before texts: it gets no second one (leave it out of the text)");
    let prompts = [
        json!({"prompt": "1+1="}),
        json!({"prompt_ids": [1, 3, 12, 3, 13]}),
        json!({"prompt_ids": [3, 12, 3, 13]}),
    ];
    let completed = prompts.map(|mut row| {
        row["completion"] = "2".into();
        row
    });
    folder.write("rows.jsonl", to_json_lines(completed));
    let score = |more: &str| {
        tests::json_lines(&folder.said(&format!(
            "score --model model --input rows.jsonl --batch-tokens 1 --out - {more}"
        )))
    };
    let (begun, plain): (Vec<Value>, Vec<Value>) = (score(""), score("--no-special-tokens"));
    assert!(
        begun[0] == begun[1] && plain[0] == plain[2] && begun[0] != plain[0],
        "{begun:?} {plain:?}"
    );
}

#[test]
fn refuses_impossible_settings_and_rows() {
    let folder = folder();
    for (name, prompt) in [
        ("critic", r#"[{"role": "critic", "content": "1"}]"#),
        ("letters", r#"[{"role": "user", "content": "two"}]"#),
        ("empty", "[]"),
        ("object", r#"{"role": "user"}"#),
    ] {
        folder.write(
            &format!("{name}.jsonl"),
            format!("{{\"prompt\": {prompt}, \"answer\": 1}}"),
        );
    }
    folder.write("bare/config.json", folder.bytes("model/config.json"));
    std::fs::copy(
        folder.path().join("model/model.safetensors"),
        folder.path().join("bare/model.safetensors"),
    )
    .unwrap();
    folder.write_tokenizer("bare");
    assert_refused("chat", &folder);
}

#[test]
fn checkpoints_carry_every_file_of_the_tokenizer() {
    let folder = folder();
    let files = [
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "generation_config.json",
    ];
    for file in files {
        folder.write(&format!("model/{file}"), "{ }");
    }
    let run = folder.train("run", &format!("{TEXT} {MODEL} {STEPS}"));
    let checkpoint = run.last_checkpoint();
    for file in files.into_iter().chain([
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]) {
        let read = |folder: std::path::PathBuf| std::fs::read(folder.join(file)).unwrap();
        assert_eq!(
            read(checkpoint.clone()),
            read(folder.path().join("model")),
            "{file}"
        );
    }
    std::fs::write(checkpoint.join("chat_template.jinja"), "another").unwrap();
    let model = checkpoint.display();
    let changed = folder.refused(&format!("generate --model {model} --chat 1+1"));
    assert!(changed.contains("chat_template.jinja"), "{changed}");
}

#[test]
fn messages_are_answered() {
    let folder = folder();
    let greedy = "--temperature 0 --max-completion-length 24";
    let text = folder.said(&format!("generate --model model {greedy} 448+972="));
    let chat = folder.said(&format!("generate --model model {greedy} --chat 448+972"));
    assert_eq!(text, format!("448+972={chat}"));
    folder.write(
        "in.jsonl",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"448+972\"}]}\n{\"prompt\": \"1+1\"}\n",
    );
    folder.said(&format!(
        "generate --model model {greedy} --chat --thinking --system 1 --input in.jsonl --out out.jsonl"
    ));
    let prompts: Vec<String> = folder
        .json_lines("out.jsonl")
        .iter()
        .map(|line| line["prompt"].to_string())
        .collect();
    assert_eq!(prompts, ["\"1448+972=1\"", "\"11+1=1\""]);
}

/// Templates that write without end or take all memory, each with the limit that its error names.
fn limited(values: &[(&str, &str)]) {
    let folder = folder();
    // Lists and maps that would be endless if they were written out; the engine counts the steps
    // that make them alone.
    let nested = "{% set ns = namespace(x=[1], y=[1], d={'a': 1}) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
        {% set ns.y = [ns.y, ns.y] %}{% set ns.d = {'a': ns.d, 'b': ns.d} %}{% endfor %}";
    for (value, limit) in values {
        folder.write(
            "model/chat_template.jinja",
            format!("{nested}{{{{ {value} }}}}"),
        );
        let sentence = folder.refused("generate --model model --chat 1+1");
        let mend = "(mend it, or shorten the conversation)";
        assert_eq!(
            sentence,
            format!("the chat template `model/chat_template.jinja` {limit} {mend}"),
            "{value}"
        );
    }
}

const TIME: &str = "comes to no end within 2 s of work";
const MEMORY: &str = "takes more than 512 MiB of memory, or nests values too deeply";

#[test]
#[ignore = "slow: each template takes its whole time; .ci/long runs it"]
fn every_way_to_write_a_value_has_an_end() {
    limited(&[
        ("ns.d", TIME),
        ("ns.x|tojson", TIME),
        ("ns.x|string", TIME),
        ("ns.x ~ ''", TIME),
        ("'%s'|format(ns.x)", TIME),
        ("ns.x == ns.y", TIME),
        ("ns.x in [ns.y]", TIME),
        ("[ns.x, ns.y]|sort", TIME),
        ("[ns.x, ns.y]|unique|list", TIME),
        ("{ns.x: 1}", TIME),
        ("[ns.x, ns.y]|sum(start=[])", TIME),
    ]);
}

#[test]
fn templates_end_within_their_time_and_memory() {
    limited(&[
        ("ns.x", TIME),
        ("(['1' * 1000000] * 100000)|join|length", MEMORY),
    ]);
    let folder = folder();
    folder.write("model/chat_template.jinja", "{{ '1' * 5000000 }}");
    assert_snapshot!(folder.refused("generate --model model --chat 1+1"), @"the chat template makes a text of 5000000 bytes, at most 2097152 are taken (shorten the conversation)");
    folder.write(
        "model/chat_template.jinja",
        "{{ raise_exception('1' * 5000000) }}",
    );
    let sentence = folder.refused("generate --model model --chat 1+1");
    assert!(sentence.len() < 5000, "{} bytes", sentence.len());
}

#[test]
fn applies_templates_after_its_own_file_is_deleted() {
    let folder = folder();
    let gone = "cp \"$0\" gone && exec 3< gone && rm gone && exec /proc/self/fd/3 generate --model model --max-completion-length 8 --chat 1+1";
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", gone])
        .arg(tests::artifacts::file("host"))
        .current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
