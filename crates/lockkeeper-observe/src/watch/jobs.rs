//! Jobs on the page of an observation. An observer does not read them: the program that does hands them over.

/// The jobs of one tree, as a page shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    /// A line for each job, the worst first.
    pub lines: Vec<JobLine>,
    /// Why the lines are out of date: the end of a sentence. `None` if they are not.
    pub problem: Option<String>,
}

/// A job, in words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobLine {
    /// The path of its lock.
    pub path: String,
    /// Its state, for example `failed, late`.
    pub state: String,
    /// Whether it is in order.
    pub health: JobHealth,
    /// The slot of its last run.
    pub slot: String,
    /// When its last run began.
    pub started: String,
    /// How long its last run took.
    pub took: String,
    /// The machine of its last run.
    pub host: String,
    /// What else there is to say.
    pub notes: String,
}

/// Whether a job is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobHealth {
    InOrder,
    /// It is late, or its last requests were refused.
    Doubtful,
    Failed,
}
