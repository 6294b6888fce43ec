//! Numbers of TRL's functions, written by `golden/make_trl.py`.

use capo_plugin::testing::RolloutFixture;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    think: Vec<(String, f32)>,
    think_answer: Vec<(String, f32)>,
    tag_count: Vec<(String, f32)>,
    soft_overlong: Vec<Lengths>,
}

#[derive(Deserialize)]
struct Lengths {
    max_completion_len: usize,
    soft_punish_cache: usize,
    lengths: Vec<usize>,
    rewards: Vec<f32>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/trl.json")).unwrap()
}

#[test]
fn format() {
    let golden = golden();
    let styles = [
        ("think", golden.think),
        ("think_answer", golden.think_answer),
        ("tag_count", golden.tag_count),
    ];
    for (style, cases) in styles {
        let mut reward = super::reward("format", &format!("{{\"style\": \"{style}\"}}"));
        for (text, expected) in cases {
            let scored = RolloutFixture::new(&[&text]).score(&mut reward).unwrap();
            assert_eq!(scored.rewards, [expected], "{style}: {text:?}");
        }
    }
}

#[test]
fn soft_overlong() {
    for case in golden().soft_overlong {
        let Lengths {
            max_completion_len,
            soft_punish_cache,
            lengths,
            rewards,
        } = case;
        let keys = serde_json::json!({"max_completion_len": max_completion_len, "soft_punish_cache": soft_punish_cache});
        let texts: Vec<String> = lengths.iter().map(|length| "a".repeat(*length)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let scored = RolloutFixture::new(&texts)
            .score(&mut super::reward("soft_overlong", &keys.to_string()))
            .unwrap();
        assert_eq!(scored.rewards, rewards, "{keys}");
    }
}
