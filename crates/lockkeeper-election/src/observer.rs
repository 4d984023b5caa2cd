//! An observer: who leads, without being a candidate.

use std::ops::Deref;

use futures_util::stream::{self, Stream};
use lockkeeper::Error;
use lockkeeper::admin::{ContenderInfo, Follow, LockInfo};

/// The leader of an election, as others see it: its [`ContenderInfo`], with its owner, its token and since when it leads.
#[derive(Clone, Debug, PartialEq)]
pub struct Leader(ContenderInfo);

impl Leader {
    /// The leader that a look at the election shows.
    pub(crate) fn of(election: LockInfo) -> Option<Self> {
        election.holders.into_iter().next().map(Leader)
    }

    /// Returns its id: that of [`Election::candidate`](crate::Election::candidate), or what a foreign candidate wrote.
    ///
    /// Another program chose it; `{:?}` escapes what could deceive the reader of a terminal or a log.
    pub fn id(&self) -> &str {
        self.0.message.as_deref().unwrap_or(&self.0.described)
    }
}

impl Deref for Leader {
    type Target = ContenderInfo;

    fn deref(&self) -> &ContenderInfo {
        &self.0
    }
}

/// Says who leads after each change. Created by [`Election::observe`](crate::Election::observe).
///
/// It watches the whole election: every candidate that comes or goes wakes it, and costs an ordered write and a listing. Use it in a few
/// processes. A large fleet asks [`Election::leader`](crate::Election::leader) when it needs the answer.
#[derive(Debug)]
pub struct Observer {
    follow: Follow,
    /// The node of the leader that was reported last; `None` before the first report.
    seen: Option<Option<String>>,
}

impl Observer {
    pub(crate) fn new(follow: Follow) -> Self {
        Observer { follow, seen: None }
    }

    /// Returns the leader: the first call the present one, later calls the next one that differs. `None`: nobody leads.
    ///
    /// Leaders are reported in the order of their terms. Terms that are shorter than a look may be left out, but never the last one: when
    /// the changes end, the last report is the truth. A candidate that leads again is reported again. While no server answers, the call waits, and the last
    /// report may be old.
    ///
    /// # Cost
    ///
    /// Nothing while nothing changes. For each candidate that comes or goes, an ordered write and a listing in one round trip, and one for
    /// the nodes of new candidates.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; the next call reports a change that happens meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Follow::next`]. The next call looks again; after a [retryable](Error::is_retryable) error, pause before it.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let leader = Leader::of(self.follow.next().await?);
            let node = Some(leader.as_ref().map(|leader| leader.node.clone()));
            if self.seen != node {
                self.seen = node;
                return Ok(leader);
            }
        }
    }

    /// Returns [`Observer::next`] as a stream, which never ends.
    pub fn into_stream(self) -> impl Stream<Item = Result<Option<Leader>, Error>> + Send {
        stream::unfold(self, |mut observer| async { Some((observer.next().await, observer)) })
    }
}
