//! What Linux says of a process in `/proc/PID/stat`.

/// Some fields of `/proc/PID/stat`. See proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcStat {
    /// Its state: `R` runs, `S` sleeps, `D` waits for a disk, `T` is stopped, `Z` has ended.
    pub state: char,
    /// The id of its process group.
    pub group: i32,
    /// The id of its session, in the sense of setsid(2).
    pub session: i32,
    /// The processor time that it and its ended children have used, in clock ticks.
    pub ticks: u64,
    /// The number of its threads.
    pub threads: u32,
    /// When it was started, in clock ticks since the machine's start.
    pub started: u64,
}

impl ProcStat {
    /// Reads the fields of a process; `None` if there is no such process, or it cannot be seen.
    pub fn of(pid: u32) -> Option<ProcStat> {
        ProcStat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the text of the file. The program's name, in parentheses, may contain anything.
    fn parse(stat: &str) -> Option<ProcStat> {
        // The first of these is the third field of the manual page.
        let fields: Vec<_> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(ProcStat {
            state: fields.first()?.chars().next()?,
            group: fields.get(5 - 3)?.parse().ok()?,
            session: fields.get(6 - 3)?.parse().ok()?,
            ticks: (14..=17).filter_map(number).sum(),
            threads: number(20)?.try_into().ok()?,
            started: number(22)?,
        })
    }

    /// Returns whether it runs. A process whose first thread has ended looks like a zombie while its other threads run.
    pub fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x') || self.threads > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, state: char, threads: u32) -> String {
        format!(
            "17 ({name}) {state} 1 42 40 0 -1 4194560 100 200 0 0 11 22 33 44 20 0 {threads} 0 515032 3133440 413 0\n"
        )
    }

    #[test]
    fn the_fields_are_read_whatever_the_program_is_called() {
        let read = ProcStat::parse(&stat("a) Z 9 (b", 'R', 3));
        assert_eq!(
            read,
            Some(ProcStat { state: 'R', group: 42, session: 40, ticks: 110, threads: 3, started: 515_032 })
        );
        assert_eq!(["", "nothing", "7 (cat) R 1"].map(ProcStat::parse), [None; 3]);
    }

    #[test]
    fn threads_that_outlive_the_first_one_run() {
        let runs = |state, threads| ProcStat::parse(&stat("cat", state, threads)).unwrap().runs();
        assert!(runs('S', 1) && runs('R', 8) && runs('T', 1) && runs('Z', 2));
        assert!(!runs('Z', 1) && !runs('X', 1));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_seen_to_run() {
        assert!(ProcStat::of(std::process::id()).unwrap().runs());
    }
}
