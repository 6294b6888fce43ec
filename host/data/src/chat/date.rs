//! The date that templates take as today.

use std::fmt::Write;
use std::time::SystemTime;

use anyhow::Context;
use chrono::format::{Fixed, Item, StrftimeItems};
use chrono::{DateTime, Datelike, NaiveDate, NaiveTime, Utc};
use minijinja::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// A date, written as `2026-07-31`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Date(NaiveDate);

impl Default for Date {
    /// Today's date in UTC.
    fn default() -> Self {
        Self(DateTime::<Utc>::from(SystemTime::now()).date_naive())
    }
}

impl TryFrom<String> for Date {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let date = text
            .parse::<NaiveDate>()
            .ok()
            .filter(|date| (1..=9999).contains(&date.year()));
        // Only one way to write a date is accepted.
        let date = date.filter(|date| date.to_string() == text);
        date.map(Self)
            .with_context(|| format!("`{text}` is no day (write it as in `2026-07-31`)"))
    }
}

impl From<Date> for String {
    fn from(Date(date): Date) -> Self {
        date.to_string()
    }
}

impl Date {
    /// Formats the midnight that begins this date as Python's `strftime` does, in English and
    /// without a time zone.
    pub(super) fn format(self, format: &str) -> Result<String, Error> {
        let mut items: Vec<Item<'_>> = StrftimeItems::new(format).collect();
        items.retain(|item| {
            !matches!(
                item,
                Item::Fixed(
                    Fixed::TimezoneName | Fixed::TimezoneOffset | Fixed::TimezoneOffsetColon
                )
            )
        });
        let midnight = self.0.and_time(NaiveTime::MIN);
        let mut text = String::new();
        write!(text, "{}", midnight.format_with_items(items.iter())).map_err(|_| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now knows no `{format}`"),
            )
        })?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str) -> Date {
        text.to_owned().try_into().unwrap()
    }

    #[test]
    fn accepts_one_way_to_write_a_date() {
        assert_eq!(String::from(date("2000-02-29")), "2000-02-29");
        for text in [
            "2026-02-29",
            "2026-13-01",
            "2026-1-1",
            "26-01-01",
            "today",
            "2026-01-00",
            "2026-01-01-01",
            "+10000-01-01",
        ] {
            let error = Date::try_from(text.to_owned()).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("`{text}` is no day (write it as in `2026-07-31`)")
            );
        }
    }

    #[test]
    fn formats_dates_as_python_does() {
        let day = date("2024-07-06");
        assert_eq!(day.format("%d %b %Y").unwrap(), "06 Jul 2024");
        assert_eq!(
            day.format("%A, %B %-d, %y %j%% %H:%M%z%Z").unwrap(),
            "Saturday, July 6, 24 188% 00:00"
        );
        assert!(
            day.format("%Q")
                .unwrap_err()
                .to_string()
                .contains("strftime_now knows no `%Q`")
        );
        assert!(day.format("100%").is_err());
    }
}
