//! Cases that no comparison with another program covers: hostile texts, and the guarantees of
//! `extract`.

use capo_plugin::testing::RolloutFixture;

use super::*;

/// Texts that would hang, overflow the stack or exhaust memory without limits.
fn hostile() -> Vec<String> {
    let many = |part: &str, count: usize| part.repeat(count);
    let nested = |open: &str, close: &str, count: usize| {
        format!("{}1{}", many(open, count), many(close, count))
    };
    let mut formulas = vec![
        "9^9^9^9".into(),
        "9^{9^{9^{9^{9^9}}}}".into(),
        "((9^9)^9)^9^9".into(),
        "9999999999999!!!!".into(),
        "300!^{300!}".into(),
        "\\binom{10^9}{300}^{99}".into(),
        "\\log_{1}{1}+\\log_0 0+\\ln 0+0^{-1}+\\frac{0}{0}+0^0".into(),
        "\\sqrt[0]{2}+\\sqrt[4294967296]{2}+\\sqrt[-1]{0}".into(),
        "1e999999999999999999999".into(),
        "1e1200^1200".into(),
        "0.\\overline{9}".into(),
        (3..600)
            .map(|n| format!("+\\frac{{1}}{{{}}}", n * n + 1))
            .collect(),
        (1..150)
            .map(|n| format!("(\\sqrt{{{n}}}+x_{{{n}}})"))
            .collect(),
        (1..200).map(|n| format!("{n},")).collect::<String>() + "0",
        "\\pm".repeat(400) + "1",
        "x".repeat(999),
        "x^".repeat(300) + "2",
        "\\sin ".repeat(300) + "x",
        "-".repeat(900) + "1",
        "1:".repeat(499) + "1",
        "f(".repeat(70) + "\\sqrt2" + &")".repeat(70),
        "x_1=1,".repeat(200) + "x_1=1",
        "\\zeta(\\binom{x}{y}!)".repeat(90),
        "1".to_owned() + &"!".repeat(900),
        "|".repeat(500),
        "\\begin{pmatrix}".repeat(30),
        "&\\\\".repeat(300),
        "é½√∞≤ππ".repeat(20),
        "\\int_0^1 ".repeat(30) + "x" + &" dx".repeat(30),
        "\\sum_{k=1}^{1000} ".repeat(30) + "k",
        "\\sum_{k=1}^{\\infty} ".repeat(30) + "\\frac{1}{k^2}",
        "\\lim_{x\\to 0} ".repeat(30) + "x",
        "\\begin{aligned}".repeat(60) + "1" + &"\\end{aligned}".repeat(60),
        "\\begin{align}".repeat(200),
        "x=1\\quad ".repeat(200) + "y=2",
        "\\max(".to_owned() + &(1..60).map(|n| format!("x+{n},")).collect::<String>() + "x)",
        "\\text{a ".repeat(50) + "1",
        "5\\text{ million}".repeat(60),
        "C(".repeat(39) + "1" + &",2)".repeat(39),
        "C(".repeat(39) + "1" + &")".repeat(39),
        "C(".repeat(300),
        "C_{".repeat(39) + "1" + &"}".repeat(39),
        "C_{".repeat(39) + "1" + &"}^2".repeat(39),
        "\\boxed{1$é".into(),
        "1} and \\boxed{é$ \\boxed{2}".into(),
    ];
    for count in [50, 500, 100_000] {
        for (open, close) in [
            ("{", "}"),
            ("(", ")"),
            ("\\frac{", "}{2}"),
            ("\\sqrt{", "}"),
            ("\\text{", "}"),
            ("\\{", "\\}"),
            ("2^{", "}"),
        ] {
            formulas.push(nested(open, close, count));
        }
        formulas.push(many("9", count * 10));
        formulas.push(many("{", count));
        formulas.push(many("\\boxed{", count));
        formulas.push(many("$", count) + &many("\\$", count));
        formulas.push(many("\\(", count));
        formulas.push(many("answer is $", count));
        formulas.push(many("\\", count));
        formulas.push(many("\\boxed{1} and ", count));
    }
    formulas
}

#[test]
fn hostile_texts_come_to_an_end() {
    let gold = Answer::gold("$9^{9^{9^{9}}}$");
    for formula in hostile() {
        for text in [
            format!("\\boxed{{{formula}}}"),
            format!("${formula}$"),
            formula.clone(),
        ] {
            for places in [Places::Any, Places::Anchored] {
                if let Some(answer) = Answer::of(&text, places) {
                    let _ = (
                        answer.matches(&gold),
                        answer.matches(&answer),
                        answer.canonical(),
                    );
                }
            }
            let _ = Answer::gold(&text);
        }
    }
}

#[test]
fn what_is_too_large_is_only_what_is_written_the_same() {
    assert!(verify("$9^{9^{9^9}}$", "\\boxed{9^{9^{9^9}}}"));
    for other in ["9^{9^{9^8}}", "\\infty", "10^{9^{9^9}}", "0"] {
        assert!(
            !verify("$9^{9^{9^9}}$", &format!("\\boxed{{{other}}}")),
            "{other}"
        );
    }
    assert!(!verify("$\\frac{1}{0}$", "\\boxed{\\frac{2}{0}}"));
}

/// Answers to one dataset's answer; with `boxed`, each stands in a box of a sentence.
#[derive(serde::Deserialize)]
struct Case {
    kind: String,
    gold: String,
    boxed: bool,
    anchored: bool,
    right: Vec<String>,
    wrong: Vec<String>,
}

#[test]
fn answers_are_graded_as_a_teacher_would() {
    for line in include_str!("../../golden/cases.jsonl").lines() {
        let Case {
            kind,
            gold,
            boxed,
            anchored,
            right,
            wrong,
        } = serde_json::from_str(line).unwrap();
        let mut reward = capo_plugin::Image::own()
            .reward("math", &format!("{{\"anchored\": {anchored}}}"))
            .unwrap();
        for (answers, expected) in [(right, 1.0), (wrong, 0.0)] {
            for answer in answers {
                let text = if boxed {
                    format!("The answer is $\\boxed{{{answer}}}$.")
                } else {
                    answer
                };
                let scored = RolloutFixture::new(&[&text])
                    .answers(&[&gold])
                    .score(&mut reward)
                    .unwrap();
                assert_eq!(scored.rewards, [expected], "{kind}: {gold} | {text}");
            }
        }
    }
}

/// Completions of one dataset's answer, whose answer a reward must find first.
#[derive(serde::Deserialize)]
struct Completions {
    reward: String,
    kind: String,
    gold: String,
    anchored: Option<bool>,
    right: Vec<String>,
    wrong: Vec<String>,
}

#[test]
fn an_answer_is_found_where_a_reader_would_look() {
    for line in include_str!("../../golden/found.jsonl").lines() {
        let Completions {
            reward,
            kind,
            gold,
            anchored,
            right,
            wrong,
        } = serde_json::from_str(line).unwrap();
        let keys = anchored.map_or("{}".into(), |anchored| {
            format!("{{\"anchored\": {anchored}}}")
        });
        let mut reward = capo_plugin::Image::own().reward(&reward, &keys).unwrap();
        for (texts, expected) in [(right, 1.0), (wrong, 0.0)] {
            for text in texts {
                let scored = RolloutFixture::new(&[&text])
                    .answers(&[&gold])
                    .score(&mut reward)
                    .unwrap();
                assert_eq!(
                    scored.rewards,
                    [expected],
                    "{kind}: {gold} | {text} | {anchored:?}"
                );
            }
        }
    }
}

#[test]
fn one_answer_however_it_is_written() {
    let alike = [
        ["\\boxed{\\frac{3}{6}}", "the answer is 0.5"],
        ["\\boxed{2x+1}", "$1+2x$"],
        ["\\boxed{\\{2, 1\\}}", "$1,2$"],
        ["\\boxed{\\text{East}}", "$\\text{east}$"],
        ["#### 1,234", "1234"],
        ["\\boxed{B}", "\\boxed{\\textbf{(B)}\\ 12}"],
        ["\\boxed{y=2, x=1}", "\\boxed{(1,2)}"],
    ];
    for [one, other] in alike {
        assert_eq!(extract(one), extract(other), "{one}");
        assert!(extract(one).is_some(), "{one}");
    }
    for [one, other] in [
        ["x", "y"],
        ["Evelyn", "Levyne"],
        ["x=1, y=2", "x=2, y=1"],
        ["R-r", "r-R"],
        ["\\zeta(2)", "2\\zeta"],
    ] {
        assert_ne!(
            extract(&format!("\\boxed{{{one}}}")),
            extract(&format!("\\boxed{{{other}}}")),
            "{one}"
        );
    }
    assert_eq!(
        ["", "I do not know", "\\boxed{} 5"].map(extract),
        [None, None, None]
    );
    assert!(!verify("", "\\boxed{}"));
}
