//! Durations as people write them on the command line (`250ms`, `10s`, `1h30m`), and how they are shown.

use std::time::Duration;

const MILLI: u64 = 1;
const SECOND: u64 = 1_000 * MILLI;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Reads a duration: whole numbers, each with one of the units `ms`, `s`, `m`, `h`, `d`.
///
/// A bare number is refused: half of the tools of this kind take it for seconds, the others for milliseconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{text} has no unit: write {text}s, {text}ms, {text}m, {text}h or {text}d"));
    }
    let form = || "write for instance 250ms, 10s, 5m or 1h30m".to_owned();
    let mut rest = text;
    let mut total_ms = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let unit_ms = match unit {
            "ms" => MILLI,
            "s" => SECOND,
            "m" => MINUTE,
            "h" => HOUR,
            "d" => DAY,
            _ => return Err(form()),
        };
        if number.is_empty() {
            return Err(form());
        }
        let too_long = || "it is too long".to_owned();
        let number: u64 = number.parse().map_err(|_| too_long())?;
        total_ms =
            number.checked_mul(unit_ms).and_then(|ms| total_ms.checked_add(ms)).ok_or_else(too_long)?;
        rest = after;
    }
    if text.is_empty() { Err(form()) } else { Ok(Duration::from_millis(total_ms)) }
}

/// A reader of durations from the shortest to the longest that is allowed.
pub(crate) fn between(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let duration = parse(text)?;
        if (least..=most).contains(&duration) {
            Ok(duration)
        } else {
            Err(format!("{} to {} are allowed", show(least), show(most)))
        }
    }
}

/// A duration for people: two units at most, milliseconds only below ten seconds.
pub(crate) fn show(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let with_rest = |high: u64, high_unit, low: u64, low_unit| match low {
        0 => format!("{high}{high_unit}"),
        low => format!("{high}{high_unit}{low}{low_unit}"),
    };
    match ms {
        0..SECOND => format!("{ms}ms"),
        SECOND..10_000 if ms % SECOND >= 100 => format!("{}.{}s", ms / SECOND, ms % SECOND / 100),
        SECOND..MINUTE => format!("{}s", ms / SECOND),
        MINUTE..HOUR => with_rest(ms / MINUTE, "m", ms % MINUTE / SECOND, "s"),
        _ => with_rest(ms / HOUR, "h", ms % HOUR / MINUTE, "m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_up() {
        for (text, ms) in [
            ("250ms", 250),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1m500ms", 60_500),
            ("0s", 0),
            ("1d", 86_400_000),
            ("1d12h", 129_600_000),
        ] {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
    }

    /// F097: Durations on the command line need whole numbers with units; anything else, or more than fits,
    /// is refused with an example.
    #[test]
    fn f097_anything_else_is_refused_with_advice() {
        for text in ["", "s", "10 s", "-1s", "1.5s", "10sec", "NaN", "1h30", "10S", "1µs", "infinite"] {
            assert!(parse(text).unwrap_err().contains("1h30m"), "{text}");
        }
        assert_eq!(parse("10").unwrap_err(), "10 has no unit: write 10s, 10ms, 10m, 10h or 10d");
        assert_eq!(parse("99999999999999999999s").unwrap_err(), "it is too long");
        assert_eq!(parse("9999999999999999999h").unwrap_err(), "it is too long");
    }

    #[test]
    fn limits_are_told_and_themselves_allowed() {
        let read = between(Duration::from_millis(10), Duration::from_secs(24 * 3_600));
        for text in ["0s", "9ms", "24h1ms", "48h"] {
            assert_eq!(read(text).unwrap_err(), "10ms to 24h are allowed", "{text}");
        }
        assert_eq!(read("10ms").unwrap(), Duration::from_millis(10));
        assert_eq!(read("24h").unwrap(), Duration::from_secs(24 * 3_600));
        assert!(read("10").unwrap_err().contains("no unit"));
    }

    #[test]
    fn shown_in_two_units_at_most() {
        for (ms, text) in [
            (250, "250ms"),
            (1_000, "1s"),
            (1_250, "1.2s"),
            (29_400, "29s"),
            (60_000, "1m"),
            (90_000, "1m30s"),
            (5_400_000, "1h30m"),
        ] {
            assert_eq!(show(Duration::from_millis(ms)), text);
        }
    }
}
