//! The thread that waits for the disk.
//!
//! It makes one batch durable at a time. Meanwhile the engine collects the next one: the slower the disk, the larger
//! the batches.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc as async_mpsc;

use crate::error::ServerError;
use crate::store::{Batch, Store};

/// A running disk thread. Dropping it completes the current batch and closes the store.
#[derive(Debug)]
pub(crate) struct Disk {
    batches: Option<mpsc::Sender<Batch>>,
    results: async_mpsc::UnboundedReceiver<(Batch, Result<(), ServerError>)>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    pub(crate) fn start(mut store: Box<dyn Store>) -> Result<Self, ServerError> {
        let (batches, inbox) = mpsc::channel::<Batch>();
        let (outbox, results) = async_mpsc::unbounded_channel();
        let run = move || {
            for batch in inbox {
                let result = store.commit(&batch);
                let failed = result.is_err();
                let unheard = outbox.send((batch, result)).is_err();
                if failed {
                    return;
                }
                if unheard {
                    break;
                }
            }
            store.close();
        };
        let thread = thread::Builder::new()
            .name("lockkeeper-disk".to_owned())
            .spawn(run)
            .map_err(|source| ServerError::System { what: "a thread for the disk", source })?;
        Ok(Self { batches: Some(batches), results, thread: Some(thread) })
    }

    /// Makes a batch durable, and returns it so that its buffers are used again.
    pub(crate) async fn commit(&mut self, batch: Batch) -> Result<Batch, ServerError> {
        let sent = self.batches.as_ref().is_some_and(|batches| batches.send(batch).is_ok());
        if !sent {
            return Err(ServerError::Bug);
        }
        // The thread ends only after an error that it has reported, or by a panic.
        let (batch, result) = self.results.recv().await.ok_or(ServerError::Bug)?;
        result.map(|()| batch)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // The runtime has printed a panic of that thread already.
            let _ = thread.join();
        }
    }
}
