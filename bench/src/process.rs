//! What a process uses: processor time of it and of its threads, and memory, as Linux tells it in `/proc`.

use std::fs::read_to_string;
use std::io;
use std::time::Duration;

/// Linux counts processor time for users in hundredths of a second, whatever its own clock does.
const TICK: Duration = Duration::from_millis(10);

/// Processor time used so far, and memory held now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// Of all threads, also of those that have ended.
    pub(crate) total: Duration,
    /// Resident memory.
    pub(crate) bytes: f64,
    threads: Vec<(String, Duration)>,
}

impl Usage {
    /// Of a process of this machine.
    ///
    /// # Errors
    /// When there is none, or no `/proc`.
    pub(crate) fn of(process: u32) -> io::Result<Self> {
        let folder = format!("/proc/{process}");
        let (_, total) = parse(&read_to_string(format!("{folder}/stat"))?)?;
        let status = read_to_string(format!("{folder}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).map(str::trim);
        let kib =
            resident.and_then(|text| text.strip_suffix(" kB")).and_then(|text| text.parse::<f64>().ok());
        let bytes = kib.ok_or_else(|| io::Error::other("no VmRSS"))? * 1024.0;
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(format!("{folder}/task"))? {
            // A thread may end while it is looked at.
            if let Ok(stat) = read_to_string(entry?.path().join("stat")) {
                threads.push(parse(&stat)?);
            }
        }
        Ok(Self { total, bytes, threads })
    }

    /// Of the threads with this name.
    pub(crate) fn thread(&self, name: &str) -> Duration {
        self.threads.iter().filter(|(thread, _)| thread == name).map(|(_, time)| *time).sum()
    }
}

/// Name and processor time from a `stat` file. The name stands in parentheses and may contain anything.
fn parse(stat: &str) -> io::Result<(String, Duration)> {
    let odd = || io::Error::other(format!("this is not what /proc/PID/stat looks like: {stat}"));
    let (head, fields) = stat.rsplit_once(") ").ok_or_else(odd)?;
    let name = head.split_once('(').ok_or_else(odd)?.1.to_owned();
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u32>);
    match (ticks.next(), ticks.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Ok((name, TICK * (user + system))),
        _ => Err(odd()),
    }
}
