//! Texts that would hang, overflow the stack or exhaust memory without limits.

use math_answer::{Answer, Places, Verdict, grade, number};

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
fn grades_hostile_texts_in_bounded_time() {
    let gold = Answer::gold("$9^{9^{9^{9}}}$");
    for formula in hostile() {
        for text in [
            format!("\\boxed{{{formula}}}"),
            format!("${formula}$"),
            formula.clone(),
        ] {
            for places in [Places::Any, Places::Anchored] {
                if let Some(answer) = Answer::find(&text, places) {
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
fn compares_values_beyond_the_limits_as_text() {
    let verdict = |gold: &str, text: &str| grade(gold, text, Places::Any);
    assert!(verdict("$9^{9^{9^9}}$", "\\boxed{9^{9^{9^9}}}").is_right());
    for other in ["9^{9^{9^8}}", "\\infty", "10^{9^{9^9}}", "0"] {
        assert_eq!(
            verdict("$9^{9^{9^9}}$", &format!("\\boxed{{{other}}}")),
            Verdict::Wrong,
            "{other}"
        );
    }
    assert_eq!(
        verdict("$\\frac{1}{0}$", "\\boxed{\\frac{2}{0}}"),
        Verdict::Wrong
    );
}

#[test]
fn finds_numbers_in_long_texts_in_bounded_time() {
    let parts = ["? no, 1", "answer is ", "1^", "\\sqrt{", "</think>", "1-"];
    for part in parts {
        let text = part.repeat(20_000 / part.len());
        for text in [
            &text,
            &format!("#### {text}"),
            &format!("\\boxed{{{text}}}"),
            &format!("answer is {text}"),
        ] {
            let _ = number::find(text, "####");
        }
    }
    assert_eq!(number::find(&"9".repeat(100_000), "####"), None);
}
