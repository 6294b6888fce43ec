//! Phrases by which a text names its answer, changes it or takes it back.

/// Phrases before an answer, in lower case.
const ANCHORS: [&str; 5] = [
    "final answer is",
    "answer is",
    "answer:",
    "answer :",
    "answer**:",
];

/// Largest number of such phrases that are read, from the end of a text.
const MOST_ANCHORS: usize = 8;

/// A place behind a phrase that names an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor<'t> {
    /// End of the phrase, bytes.
    pub behind: usize,
    /// The rest of its line.
    pub rest: &'t str,
    /// Position of that rest, bytes.
    pub start: usize,
    /// True if the phrase corrects an answer: `No, it's`.
    pub corrects: bool,
}

/// The end of a phrase that names an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    at: usize,
    corrects: bool,
}

/// Longest text between an answer and the phrase that corrects it, bytes.
const MOST_TO_CORRECTION: usize = 200;

/// The places behind phrases before an answer, the last one first. `No, it's` before a value counts
/// too if it closely follows such a place, or the beginning of a text whose answer stands before
/// it.
pub(crate) fn anchors(text: &str, follows_answer: bool) -> Vec<Anchor<'_>> {
    let mut answers = named(text);
    let mut ends: Vec<End> = naming(&answers);
    if follows_answer {
        answers.push(0);
    }
    for at in corrections(text) {
        let follows = |answer: &usize| (*answer..=*answer + MOST_TO_CORRECTION).contains(&at);
        if answers.iter().any(follows) {
            answers.push(at);
            ends.push(End { at, corrects: true });
        }
    }
    ordered(text, ends)
}

/// The rest of the line behind the last words by which a text names its answer.
pub(crate) fn stated(text: &str) -> Option<&str> {
    ordered(text, naming(&named(text)))
        .first()
        .map(|anchor| anchor.rest)
}

fn naming(ends: &[usize]) -> Vec<End> {
    ends.iter()
        .map(|&at| End {
            at,
            corrects: false,
        })
        .collect()
}

/// Positions behind phrases that name an answer.
fn named(text: &str) -> Vec<usize> {
    let lower = text.to_ascii_lowercase();
    let mut ends = Vec::new();
    for anchor in ANCHORS {
        let found = lower.rmatch_indices(anchor).take(4 * MOST_ANCHORS);
        let naming = found.filter(|(at, _)| names_answer(text, *at, anchor));
        ends.extend(naming.map(|(at, _)| at + anchor.len()).take(MOST_ANCHORS));
    }
    ends
}

/// True if the phrase `anchor` at a position names an answer. `If the answer is`, `the wrong answer
/// is` and `the answer isn't` name none.
fn names_answer(text: &str, at: usize, anchor: &str) -> bool {
    let behind = &text[at + anchor.len()..];
    let is_whole = anchor.ends_with(':')
        || !behind.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '\'' | '’'));
    is_whole && !is_supposed(&text[..at]) && !denies(&text[..at])
}

/// The last of these places, in descending order.
fn ordered(text: &str, mut ends: Vec<End>) -> Vec<Anchor<'_>> {
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.dedup_by_key(|end| end.at);
    ends.truncate(MOST_ANCHORS);
    ends.into_iter().map(|end| anchor(text, end)).collect()
}

fn anchor(text: &str, end: End) -> Anchor<'_> {
    let rest = text[end.at..].trim_start_matches([':', ' ', '\n', '*']);
    let line = rest.lines().next().unwrap_or_default();
    Anchor {
        behind: end.at,
        rest: line.trim_end_matches([' ', '*']),
        start: text.len() - rest.len(),
        corrects: end.corrects,
    }
}

/// True if a clause that ends with `before` only supposes what follows, or calls it wrong.
pub(crate) fn is_supposed(before: &str) -> bool {
    let clause = last_clause(before);
    let supposes = pattern!(
        r"(?i)\b(?:if|suppos\w+|assum\w+|whether|unless|imagine|pretend|thought|guessed|claim\w*|",
        r"wrong|incorrect|mistaken|naive|tempting|",
        r"(?:some|they|he|she|you|people|students|many|might|may|would|could) (?:\w+ )?",
        r"(?:say|says|think|thinks|guess|guesses|believes?))\b",
    );
    supposes.is_match(clause) && !clause.to_lowercase().contains("only if")
}

/// True if the words before a phrase deny it: `it is not true that the answer is`.
fn denies(before: &str) -> bool {
    pattern!(r"(?i)(?:\b(?:not|false)\b|n['’]t\b)").is_match(last_clause(before))
}

/// The words behind the last sign that ends a clause.
fn last_clause(before: &str) -> &str {
    let before = &before[floor(before, before.len().saturating_sub(120))..];
    before
        .rsplit(['.', ',', '!', '?', ';', ':', '\n', '(', '—'])
        .next()
        .unwrap_or_default()
}

/// The last boundary of a character at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0)
}

/// Phrases that take back what was said, at the beginning of a clause.
const TAKES_BACK: &str = concat!(
    r"(?:[.!?;:,…—–\n(*-]|\$|\\\)|\\\]|\}|\bbut\b|\boh\b|\band\b)[\s*_“]*",
    r"(?:(?:but|oh|ah|hm+|and|then)[\s,.…]+)*",
    r"(?:",
    r"wait(?:\s*[,.:;!…—–-]|\s+(?:a|no|that|i|let|is|it|the|but|actually|what)\b)|",
    r"no(?:pe)?(?:\s*[,.:;!…—–]|\s+(?:wait|sorry|actually|that|it|this|i)\b)|",
    r"oops|whoops|(?:hold|hang) on|ignore that|not quite|i stand corrected|",
    r"scratch that|strike that|never ?mind|my (?:mistake|bad|error|apologies)|",
    r"correction\s*:|",
    r"(?:on|upon) (?:second thoughts?|(?:further |closer )?(?:reflection|inspection))|",
    r"(?:sorry|apologies|i apologi[sz]e)\s*[,.:;!…—–-]|",
    r"i (?:made an? \w*\s?(?:mistake|error)|was wrong|take (?:that|it) back|",
    r"mis(?:read|calculated|counted|took)|forgot)|",
    r"there (?:is|was) an? (?:mistake|error)|actually,?\s+no\b",
    r")",
);

/// Further phrases that correct an answer if a value follows them.
const CORRECTS: &str = concat!(
    r"(?:[.!?;:,…—–\n(-]|\$|\\\)|\\\]|\}|\bor\b)[\s*_]*",
    r"(?:actually|or rather|rather|i meant|i mean|sorry|make (?:that|it))\b",
);

/// Words that say of an answer right before them that it is wrong.
const DENIES: &str = concat!(
    r"\b(?:that|this|it|which|the above|the answer)",
    r"(?:(?:['’]s| is| was| must be| seems| looks| would be) (?:\w+ly |also |still )?",
    r"(?:wrong|incorrect|mistaken|false|impossible|not (?:right|correct|true|possible|it|the)|",
    r"too (?:big|large|small|high|low))|",
    r"(?: is| was| does| ca| could| wo|can)?n(?:['’]t|ot) (?:be )?",
    r"(?:right|correct|true|work|fit|possible|make sense))\b|",
    r"\b(?:they|he|she|we|i)(?:['’](?:re|m|s)| are| am| is| was| were) ",
    r"(?:wrong|mistaken|incorrect)\b",
);

/// Words that may stand between a phrase that corrects an answer and the new one.
const FILLS: &str = concat!(
    r"(?:[\s,.:;!…—–-]+(?:no|wait|sorry|actually|oops|my mistake|",
    r"that['’]s (?:wrong|not right|incorrect)|that is (?:wrong|not right|incorrect)|",
    r"so|rather|instead|i (?:made|was) \w+ ?\w*|correction))*",
);

/// Words that lead from a correction to its value.
const LEADS: &str = concat!(
    r"(?:(?:it|that|this|",
    r"the (?:\w+ )?(?:answer|result|value|number|total|solution|option|choice|one))",
    r"(?:['’]s| is| was| should be| should have been| must be| equals)",
    r"(?: really| actually| in fact| instead)?|",
    r"make (?:that|it)|i (?:mean|meant)|should be|should have been)",
);

/// Ends of the phrases by which a text gives another answer than before, as `Wait, no, it's`.
fn corrections(text: &str) -> Vec<usize> {
    let correction = pattern!(
        "(?i)(?:",
        TAKES_BACK,
        "|",
        CORRECTS,
        ")",
        FILLS,
        r"[\s,.:;!…—–-]*(?:",
        LEADS,
        r"\b)?|[,.;](?:\s*\$)?\s*(?:but|yet|instead|otherwise)[\s,]+",
        LEADS,
        r"\b|\blet me [^.!?:\n]{0,40}[.:,…\s]+(?:so )?",
        LEADS,
        r"\b",
    );
    correction
        .find_iter(text)
        .map(|found| found.end())
        .filter(|end| begins_with_value(&text[*end..]))
        .collect()
}

/// True if a text begins with a value or a choice. `Wait, no. Then` corrects nothing yet.
fn begins_with_value(behind: &str) -> bool {
    let rest = behind.trim_start_matches([' ', ':', '*']);
    rest.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '$' | '\\' | '-' | '−'))
        || pattern!(r"^(?:option |choice )?\(?[A-HJ]\)?(?:[.,;:!\s)]|$)").is_match(rest)
}

/// Position behind the phrase by which the text right behind an answer takes it back; `None` if the
/// answer stands.
pub(crate) fn taken_back(behind: &str) -> Option<usize> {
    // `The answer is 5?`
    let marks = [' ', '$', '*', ')', '.', '"', '”'];
    let is_asked = behind.trim_start_matches(marks).starts_with('?');
    let is_wrong = pattern!(
        r"(?i)^[\s$)*]*(?:is|was|would be|seems|looks)(?: \w+ly| also| still)? ",
        r"(?:wrong|incorrect|mistaken|false|impossible|",
        r"not (?:right|correct|true|possible|it|the))\b|",
        r"^[\s$)*]*(?:is|was)n['’]t (?:right|correct|it|the)\b",
    );
    let denial = pattern!("(?i)", DENIES)
        .find(behind)
        .filter(|found| !names_value(&behind[..found.start()]));
    let phrase = pattern!("(?i)", TAKES_BACK)
        .find_iter(behind)
        .find(|found| stands(behind, found.start(), found.end()));
    let found = [is_wrong.find(behind), denial, phrase];
    let ends = found.into_iter().flatten().map(|found| found.end());
    ends.chain(is_asked.then_some(1)).min()
}

/// True if a phrase takes the answer back: it answers no question (`Is there another? No, ...`),
/// and nothing confirms the answer right after it.
fn stands(text: &str, start: usize, end: usize) -> bool {
    let asks = text[start..].starts_with('?');
    let after = &text[end..floor(text, text.len().min(end + MOST_TO_CORRECTION))];
    let confirmed = pattern!(
        r"(?i)\b(?:yes|indeed|",
        r"(?:is|was|looks|seems|['’]s) (?:indeed |actually |still )?(?:correct|right|fine|ok)|",
        r"checks out|holds|confirmed|stands)\b",
    )
    .find(after)
    .is_some_and(|found| !names_value(&after[..found.start()]));
    !asks && !confirmed
}

/// True if a text has a digit or a formula's delimiter.
fn names_value(text: &str) -> bool {
    let behind_formula = text.trim_start_matches(['$', ' ', '}', ')', '*']);
    let behind_formula = behind_formula
        .strip_prefix("\\)")
        .or(behind_formula.strip_prefix("\\]"))
        .unwrap_or(behind_formula);
    behind_formula.contains(|c: char| c.is_ascii_digit() || matches!(c, '$' | '\\'))
}

/// Words that may stand between `not` or `than` and its value.
const BETWEEN: &str = concat!(
    r"(?:\s+(?:be|equal to|equals?|exactly|just|simply|a|an|the|answer|value|of|\w+ly))*",
    r"[\s:$({*]*(?:\\[(\[])?\s*(?:[a-zA-Z]\s*=\s*)?$",
);

/// True if the words right before a value deny it: `isn't 5`, `cannot be 5`.
pub(crate) fn is_negated(before: &str) -> bool {
    let negates = pattern!(
        r"(?i)(?:\b(?:not|never|hardly|cannot|nor|neither|instead of|rather than|other than|",
        r"except|unlike)\b|n['’]t\b)",
        BETWEEN,
    );
    negates.is_match(tail(before))
}

/// True if the words right before a value compare or calculate with it: `less than 5`, `half of 5`.
pub(crate) fn is_compared(before: &str) -> bool {
    let compares = pattern!(
        r"(?i)(?:^|[^\\\p{L}])(?:than|half|half of|twice|thrice|double|triple|minus|times|",
        r"divided by|multiplied by|root of|square of|cube of|reciprocal of|close to|",
        r"different from|distinct from|far from|anything but|unlikely to be|between|",
        r"multiple of|multiples of|divisible by|modulo|mod)\b",
        BETWEEN,
    );
    compares.is_match(tail(before))
}

/// The last bytes of a text, in which a phrase right before a value stands.
fn tail(before: &str) -> &str {
    &before[floor(before, before.len().saturating_sub(80))..]
}

/// The number word right behind a value, which multiplies it, and the length up to its end.
pub(crate) fn scale(behind: &str) -> Option<(&str, usize)> {
    let found = pattern!(r"(?i)^[\s~-]*(hundred|thousand|million|billion|trillion|dozen)s?\b")
        .captures(behind)?;
    Some((found.get(1)?.as_str(), found.get_match().end()))
}

/// True if the words right behind a value make another value of it: `more than 6`,
/// `times as many as 6`, `squared`, `or more`.
pub(crate) fn is_changed(behind: &str) -> bool {
    let sentence = behind.split(['\n', ';']).next().unwrap_or_default();
    let sentence = sentence.split(". ").next().unwrap_or_default();
    let calculates = pattern!(
        r"(?i)^[\s\\]*((?:[a-z]+\s+){0,2}?)",
        r"(?:(?:(?:more|less|fewer)(?:\s+\w+){0,2}|[a-z]+er)\s+than|",
        r"times(?:\s+(?:as|the|that|what|more))?|plus|minus|divided by|multiplied by|",
        r"raised to|short of|away from|modulo|mod)\s+(?:[a-z]+\s+){0,4}?[$\\\d]",
    );
    let joins = "which that because since as so but if when where while with by for is it and or";
    let calculated = calculates
        .captures(sentence)
        .is_some_and(|found| !says(&found[1], joins));
    let alone = pattern!(
        r"(?i)^[\s\\]*(?:(?:out of|of|to|through|over|above|below)\s+[$\\\d]|",
        r"(?:only|just)\s+(?:if|when)\b|or\s+(?:more|less|fewer|greater|higher|lower)\b|",
        r"and\s+a\s+(?:half|third|quarter)\b|to\s+the\s+power\b|",
        r"(?:squared|cubed|factorial)\s*(?:[.,!]|$))",
    );
    let cases = pattern!(
        r"(?i)^[\s,]*(?:if|when|for)\b.*",
        r"(?:\b(?:otherwise|else)\b|\b(?:and|but|or)\b.*[\d$].*\b(?:if|when|for)\b)",
    );
    calculated || alone.is_match(sentence) || cases.is_match(sentence)
}

/// Where a text says that there is no solution, behind every other sentence with a value: the
/// phrase, such as `no real solutions`.
pub(crate) fn none(text: &str) -> Option<(usize, &str)> {
    let found = pattern!(
        r"(?i)\b(?:there (?:is|are|exists?|can be)|ha(?:s|ve|d)|we (?:get|find|conclude))",
        r"(?: therefore| thus)? (no (?:[a-z]+ ){0,2}(?:solutions?|roots?))\b|",
        r"\b(no (?:[a-z]+ ){0,2}solutions?) (?:exists?|is possible|are possible)\b",
    )
    .captures_iter(text)
    .last()?;
    let phrase = found.get(1).or(found.get(2))?;
    let behind = &text[phrase.end()..];
    let limited =
        pattern!(r"(?i)^\s*(?:if|when|for|unless|other|except|besides|in|with|where|such)\b")
            .is_match(behind);
    (!limited && !is_supposed(&text[..phrase.start()]) && taken_back(behind).is_none())
        .then_some((phrase.end(), phrase.as_str()))
}

/// A text without its last sentences of courtesy: `Let me know if you have 2 more questions!`
pub(crate) fn without_courtesy(text: &str) -> &str {
    let courtesy = pattern!(
        r"(?i)(?:^|[.!?\n])[\s*]*(?:please\s+)?",
        r"(?:let me know|feel free|(?:i )?hope (?:this|that|it)|",
        r"if you (?:have|need|want|would like)|would you like|do you (?:have|need|want))\b",
    );
    match courtesy.find(text) {
        Some(found) if found.start() > 0 => &text[..=floor(text, found.start())],
        _ => text,
    }
}

/// An option that a text calls right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    /// Beginning of the phrase that chooses it, bytes.
    pub start: usize,
    pub letter: char,
    /// End of its letter, bytes.
    pub end: usize,
}

/// The letter of an option, in bold or in brackets.
const LETTER: &str = r"[*(]*([A-HJ])[*)]*";

/// Words that may stand between `is` and an option.
const SURELY: &str = "(?: clearly| definitely| actually| indeed| therefore| thus| obviously)?";

/// The end of a sentence, or a word that gives its reason.
const ENDS: &str = r"(?:\s*$|\s*[.,;!:\n]|\s+(?:because|since|as|with|which)\b)";

/// The forms of a sentence that calls an option right.
fn choosing() -> [&'static regex::Regex; 5] {
    [
        pattern!(
            r"(?i:\b(?:option|choice|answer|letter|one)\**",
            r"(?: is| must be| would be| should be|:)\**",
            SURELY,
            r"(?: the)?(?: option| choice| letter)?:?)\s*",
            LETTER,
            ENDS,
        ),
        pattern!(
            r"(?i:\b(?:option|choice|answer|letter)) ",
            LETTER,
            " (?i:(?:is|must be)",
            SURELY,
            r"(?: the)? (?:correct|right|best|true|answer|one))\b",
        ),
        pattern!(
            r"(?-u:\b|\()\**",
            LETTER,
            " (?i:is",
            SURELY,
            r"(?: the)? (?:correct|right|best|answer))\b",
        ),
        pattern!(
            r"(?i:\b(?:must be|should be|so|thus|hence|therefore),? (?:option|choice|letter)) ",
            LETTER,
            ENDS,
        ),
        pattern!(
            r"(?i:\b(?:choose|select|pick|go with)(?: option| choice| answer| letter)?) ",
            LETTER,
            ENDS,
        ),
    ]
}

/// The option of the last sentence that calls one right: `The correct option is B`,
/// `Option B is correct`. `None` if that sentence names two.
pub(crate) fn chosen(text: &str) -> Option<Chosen> {
    let forms = choosing();
    let found = forms.iter().flat_map(|form| form.captures_iter(text));
    let chosen = found.filter_map(|found| {
        let letter = found.get(1)?;
        // `Option B is correct?`
        let is_asked = text[found.get_match().end()..].starts_with('?');
        (!is_asked).then_some(Chosen {
            start: found.get_match().start(),
            letter: letter.as_str().chars().next()?,
            end: letter.end(),
        })
    });
    let last = chosen.max_by_key(|chosen| chosen.end)?;
    let before = &text[..last.start];
    let behind = &text[last.end..];
    let is_limited =
        pattern!(r"(?i)^[*)\s]*(?:is \w+(?: \w+)?)?\s*(?:if|only|when|unless)\b").is_match(behind);
    let stands = !names_other_option(before, behind)
        && !is_limited
        && !is_supposed(before)
        && taken_back(behind).is_none();
    stands.then_some(last)
}

/// True if the text around an option names another one beside it.
fn names_other_option(before: &str, behind: &str) -> bool {
    let follows = pattern!(
        r"^[*)\s]*(?:,|/|&|and\b|or\b)[\s,]*(?:and |or )?(?:so is |also )?",
        r"(?i:option |choice )?\(?[A-HJ]\b",
    );
    let precedes = pattern!(
        r"(?:[A-HJ]\)?\s*(?:,|and|or|nor|/)|(?i:neither|both|and|or|nor))\s*",
        r"(?i:option|choice)?\s*\(?$",
    );
    let is_later = pattern!(
        r"^[^.\n]*(?-u:\b)(?:and|or|but)(?-u:\b)[^.\n]*",
        r"(?i:option|choice)\s+\(?[A-HJ](?-u:\b)",
    );
    follows.is_match(behind) || precedes.is_match(before) || is_later.is_match(behind)
}

/// The text without Markdown's signs for bold: `**42**` is 42, and `2**3` stays.
pub(crate) fn without_bold(text: &str) -> String {
    pattern!(r"(^|[\s=:({])\*\*([^*\s](?:(?:\*?[^*\n])*[^*\s])?)\*\*\B")
        .replace_all(text, "$1$2")
        .into_owned()
}

/// True if a text begins with the reason of what was said, and has no other sentence.
pub(crate) fn explains(behind: &str) -> bool {
    pattern!(r"^,?\s*(?:as|since|because)\b[^\n]*$").is_match(behind.trim_end())
        && !behind.contains(". ")
}

/// True if a word of `list` is in a text.
pub(crate) fn says(text: &str, list: &str) -> bool {
    words(text).any(|word| list.split(' ').any(|known| known == word))
}

/// Words of two letters and more, in lower case and without commands.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> {
    let plain = pattern!(r"\\[a-zA-Z]+|\p{L}{2,}")
        .find_iter(text)
        .filter(|word| !word.as_str().starts_with('\\'));
    plain.map(|word| word.as_str().to_lowercase())
}
