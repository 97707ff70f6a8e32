//! What the store asks the operating system about time: the clock that counts from boot, the id of the boot,
//! and the wall clock. Only fencing tokens look at the wall clock, and only as a floor.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_core::{Clock, Error, ErrorKind, Moment, SystemClock};

/// Tells one boot of a machine from another. Moments of [`SystemClock`] compare only within one boot.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BootId(Arc<[u8]>);

impl BootId {
    /// A boot id with this value, for tests.
    pub fn new(value: impl AsRef<[u8]>) -> Self {
        Self(value.as_ref().into())
    }

    /// The id of the present boot: `/proc/sys/kernel/random/boot_id` on Linux, which is the same in every
    /// container of a kernel; `sysctl -n kern.bootsessionuuid`, asked once, on macOS.
    ///
    /// # Errors
    /// `Unavailable` when the system does not tell it.
    pub fn of_this_boot() -> Result<Self, Error> {
        let text = read_boot_id().map_err(|source| {
            Error::new(
                ErrorKind::Unavailable,
                "this system does not tell which boot it is in, so leases of an earlier boot could not be \
                 recognised: on Linux, mount /proc in this container",
            )
            .with_source(source)
        })?;
        // 16 bytes instead of 36 characters in every row, where the text is the UUID that it should be.
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        Ok(match u128::from_str_radix(&digits, 16) {
            Ok(id) if digits.len() == 32 => Self::new(id.to_be_bytes()),
            _ => Self::new(text.trim()),
        })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BootId(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

#[cfg(target_os = "linux")]
fn read_boot_id() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

#[cfg(not(target_os = "linux"))]
fn read_boot_id() -> std::io::Result<String> {
    let output = std::process::Command::new("sysctl").args(["-n", "kern.bootsessionuuid"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && !text.trim().is_empty() {
        return Ok(text);
    }
    Err(std::io::Error::other("sysctl does not know kern.bootsessionuuid"))
}

/// The time since 1970 as the wall clock has it. Steps of it change nothing but how far fencing tokens jump.
pub type WallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Clocks and boot id of a store. Tests bring their own; everything that shares a file must agree on them.
#[derive(Clone)]
pub struct Environment {
    /// The clock leases end by. The moments in [`leasehold_core::store::AcquireRequest`] are read on it too.
    pub clock: Arc<dyn Clock>,
    /// The boot that the clock counts from.
    pub boot_id: BootId,
    /// The clock that fencing tokens keep up with.
    pub wall_clock: WallClock,
    /// How far the clock runs ahead of that of the other processes: the offset of a Linux time namespace, in
    /// nanoseconds. 0 everywhere else.
    pub clock_offset_ns: i128,
}

impl Environment {
    /// The system's clocks and boot id.
    ///
    /// # Errors
    /// `Unavailable` when the system does not tell the boot id.
    pub fn system() -> Result<Self, Error> {
        Ok(Self {
            clock: Arc::new(SystemClock),
            boot_id: BootId::of_this_boot()?,
            wall_clock: Arc::new(|| {
                SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
            }),
            clock_offset_ns: time_namespace_offset(),
        })
    }

    /// The present moment in the file's own terms: microseconds since boot, whatever time namespace this
    /// process is in.
    pub(crate) fn now(&self) -> Micros {
        self.in_file(self.clock.now())
    }

    /// Whether a moment of the caller's clock has passed.
    pub(crate) fn has_passed(&self, moment: Moment) -> bool {
        self.clock.now() > moment
    }

    fn in_file(&self, moment: Moment) -> Micros {
        let ns = i128::try_from(moment.since_origin().as_nanos()).unwrap_or(i128::MAX);
        Micros(i64::try_from(ns.saturating_sub(self.clock_offset_ns) / 1_000).unwrap_or(i64::MAX))
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("boot_id", &self.boot_id)
            .field("clock_offset_ns", &self.clock_offset_ns)
            .finish_non_exhaustive()
    }
}

/// Microseconds since boot, as the file keeps moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Micros(pub(crate) i64);

impl Micros {
    /// A moment that never comes.
    pub(crate) const NEVER: Self = Self(i64::MAX);

    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The boot-time offset of this process's time namespace: the second and third field of the line `boottime`.
fn time_namespace_offset() -> i128 {
    let Ok(text) = std::fs::read_to_string("/proc/self/timens_offsets") else { return 0 };
    let line = text.lines().find_map(|line| line.strip_prefix("boottime"));
    let mut fields = line.unwrap_or_default().split_whitespace().map(str::parse::<i128>);
    match (fields.next(), fields.next()) {
        (Some(Ok(seconds)), Some(Ok(nanoseconds))) => seconds * 1_000_000_000 + nanoseconds,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_id_is_the_same_each_time_and_sixteen_bytes() {
        let id = BootId::of_this_boot().unwrap();
        assert_eq!(id, BootId::of_this_boot().unwrap());
        assert_eq!(id.as_bytes().len(), 16);
    }

    #[test]
    fn moments_are_kept_without_the_offset_of_a_time_namespace() {
        let environment = Environment { clock_offset_ns: 5_000_000, ..Environment::system().unwrap() };
        assert_eq!(environment.in_file(Moment::from_origin(Duration::from_millis(7))), Micros(2_000));
        assert!(environment.in_file(Moment::NEVER) < Micros::NEVER);
    }
}
