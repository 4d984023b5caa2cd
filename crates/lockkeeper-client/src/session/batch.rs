//! Requests of independent tasks that leave as one: creates and deletes as a transaction, lists of children as one read.
//!
//! A transaction costs a server about as much as one of its operations. So while such requests are under way, later ones
//! gather, and leave together. None waits while nothing of this kind is under way.
//!
//! If an operation fails, the server carries out nothing of its transaction. That operation gets its error, and the session
//! makes the others again, each one alone: one bad path harms no other. If a parent was missing, those of the others may be
//! missing too. So a read of them comes first: creates without a parent get that error, and the rest is made again as a
//! transaction. A list that left after the failed transaction is made again too, behind them, because it may not show them. If
//! the server refuses a transaction as a whole, all its operations are made again. After any other error of the whole, it may
//! have been carried out, and each operation gets that error.

mod gathered;

use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use lockkeeper_wire::{
    ErrorCode, Malformed, OpCode, OpResult, ReadOp, Request, Response, Stat, WatchedPath, WriteOp, request,
};

pub(super) use gathered::Gathered;
use gathered::{BYTES, List, OPERATIONS, Writes, alone, parent};

use super::{Purpose, Sent, Session};
use crate::types::{RequestError, RequestId};

/// While so many transactions and lone writes are under way, later ones gather.
const UNDER_WAY: usize = 2;
/// The length in bytes that a list of children counts with before a longer one was seen: 10 000 names of 60 bytes.
pub(super) const LIST: usize = 640 << 10;

/// A path whose list of children is asked for, and the requests that get it.
type Listed = (String, Vec<RequestId>);

/// Requests that have left together.
#[derive(Debug)]
pub(super) enum Batch {
    /// A create or delete alone.
    Write(RequestId),
    /// A transaction. `again`: it is what a read of the parents left of another one.
    Writes { ids: Vec<RequestId>, ops: Vec<WriteOp>, again: bool },
    /// A read of the parents of creates whose transaction was not carried out.
    Parents(Vec<RequestId>, Vec<WriteOp>),
    Lists {
        lists: Vec<Listed>,
        /// A transaction before them was not carried out, so they are to be made again.
        again: bool,
    },
}

impl Batch {
    pub(super) fn into_ids(self) -> Vec<RequestId> {
        match self {
            Batch::Write(id) => vec![id],
            Batch::Writes { ids, .. } | Batch::Parents(ids, _) => ids,
            Batch::Lists { lists, .. } => lists.into_iter().flat_map(|(_, ids)| ids).collect(),
        }
    }

    /// How many requests it has beside the first.
    fn more(&self) -> usize {
        match self {
            Batch::Write(_) => 0,
            Batch::Writes { ids, .. } | Batch::Parents(ids, _) => ids.len() - 1,
            Batch::Lists { lists, .. } => lists.iter().map(|(_, ids)| ids.len()).sum::<usize>() - 1,
        }
    }

    fn writes(&self) -> bool {
        !matches!(self, Batch::Lists { .. })
    }
}

/// How many requests are under way together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnderWay {
    /// Transactions and lone writes.
    writes: usize,
    /// Requests beside the first of each frame.
    more: usize,
}

/// The node that must exist before this operation is made: the parent of a new node.
fn above(op: &WriteOp) -> String {
    let parent = if let WriteOp::Create(create) = op { parent(create) } else { "" };
    if parent.is_empty() { "/".to_owned() } else { parent.to_owned() }
}

/// Whether these are the results of a transaction of these operations: one for each, or none was carried out.
fn are_answers(results: &[OpResult], ops: &[WriteOp]) -> bool {
    let of_its_kind = |(result, op): (&OpResult, &WriteOp)| match op {
        WriteOp::Create(_) => matches!(result, OpResult::Created { .. }),
        _ => matches!(result, OpResult::Deleted),
    };
    let failed = results.iter().any(|result| matches!(result, OpResult::Failed(_)));
    results.len() == ops.len() && (failed || results.iter().zip(ops).all(of_its_kind))
}

impl Session {
    /// Makes a request that may leave together with others of its kind: a create, a delete, or a list of children without a
    /// watch. Any other request is made as by [`Session::request`].
    ///
    /// It leaves before the next request that is made by [`Session::request`]. Among those that leave together, the order is
    /// free, but a list shows each write that was made before it. While a few transactions are under way, it waits until one
    /// is answered.
    pub fn request_batched(&mut self, request: Request, now: Duration) -> RequestId {
        if !self.is_connected() || self.closing.is_some() {
            return self.request(request, now);
        }
        let id = self.take_id();
        if let Some(request) = self.gathered.add(id, request, now) {
            self.leave_together();
            self.send(id, &request, now);
        }
        id
    }

    /// Returns how many requests wait until others are answered.
    pub(crate) fn held_back(&self) -> usize {
        if self.under_way.writes < UNDER_WAY { 0 } else { self.gathered.len }
    }

    /// Returns whether there is something to send now.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || self.gathered.len > self.held_back()
    }

    /// Returns the number of requests that have no answer, sent or gathered.
    pub fn in_flight(&self) -> usize {
        self.sent.len() + self.under_way.more + self.gathered.len
    }

    /// Sends what has gathered.
    pub(super) fn leave_together(&mut self) {
        let Gathered { writes, lists, at, .. } = std::mem::take(&mut self.gathered);
        let mut lists = lists.into_iter().peekable();
        for (gone, Writes { ids, ops, .. }) in writes.into_iter().enumerate() {
            self.lists_leave(&mut lists, gone, at);
            self.write_together(ids, ops, false, at);
        }
        self.lists_leave(&mut lists, usize::MAX, at);
    }

    /// Sends writes as a transaction.
    fn write_together(&mut self, ids: Vec<RequestId>, mut ops: Vec<WriteOp>, again: bool, at: Duration) {
        if let [id] = ids[..]
            && let Some(op) = ops.pop()
        {
            self.write_alone(id, &alone(op), at);
        } else {
            let xid = self.take_xid();
            request::encode_multi(&mut self.outgoing, xid, &ops);
            self.note_sent(xid, OpCode::Multi, Batch::Writes { ids, ops, again }, at);
        }
    }

    /// Sends the lists that leave behind so many transactions.
    fn lists_leave(&mut self, lists: &mut Peekable<IntoIter<List>>, gone: usize, at: Duration) {
        let most = self.most_lists();
        while lists.peek().is_some_and(|list| list.behind <= gone) {
            let (mut together, mut bytes) = (Vec::<Listed>::new(), 0);
            let has_room = |together: &[Listed], bytes, path: &str| {
                together.is_empty() || together.len() < most && bytes + 2 * path.len() <= BYTES
            };
            while let Some(List { id, path, .. }) =
                lists.next_if(|list| list.behind <= gone && has_room(&together, bytes, &list.path))
            {
                match together.iter_mut().find(|(same, _)| *same == path) {
                    Some((_, ids)) => ids.push(id),
                    None => {
                        // The read names each path twice.
                        bytes += 2 * path.len();
                        together.push((path, vec![id]));
                    }
                }
            }
            self.list_together(together, at);
        }
    }

    /// How many lists a read may ask for. Its response must not be longer than a frame may be, and the server has it in
    /// memory.
    fn most_lists(&self) -> usize {
        let fit = (self.config.max_frame / self.longest_list).clamp(1, OPERATIONS);
        if self.lists_together { fit } else { 1 }
    }

    /// Notes the length of a list. It counts twice, because it may grow until it is asked for again.
    fn note_list(&mut self, names: &[Arc<str>], stat: Option<&Stat>) {
        let names: usize = names.iter().map(|name| 4 + name.len()).sum();
        let data = stat.map_or(0, |stat| usize::try_from(stat.data_length).unwrap_or(0));
        self.longest_list = self.longest_list.max(2 * (names + data));
    }

    fn write_alone(&mut self, id: RequestId, request: &Request, at: Duration) {
        let opcode = if let Request::Create(create) = request { create.opcode } else { OpCode::Delete };
        let xid = self.take_xid();
        request::encode(&mut self.outgoing, xid, request);
        self.note_sent(xid, opcode, Batch::Write(id), at);
    }

    /// Sends lists as one read.
    fn list_together(&mut self, mut lists: Vec<Listed>, at: Duration) {
        let xid = self.take_xid();
        let opcode = if let [(path, _)] = &mut lists[..] {
            let request = Request::GetChildren2(WatchedPath { path: std::mem::take(path), watch: false });
            request::encode(&mut self.outgoing, xid, &request);
            if let Request::GetChildren2(watched) = request {
                *path = watched.path;
            }
            OpCode::GetChildren2
        } else {
            request::encode_lists(&mut self.outgoing, xid, lists.iter().map(|(path, _)| path.as_str()));
            OpCode::MultiRead
        };
        self.note_sent(xid, opcode, Batch::Lists { lists, again: false }, at);
    }

    /// Notes what was encoded.
    fn note_sent(&mut self, xid: i32, opcode: OpCode, batch: Batch, at: Duration) {
        self.under_way.writes += usize::from(batch.writes());
        self.under_way.more += batch.more();
        // They leave no watches, so `newest` may be older.
        let purpose = Purpose::Batch(batch);
        self.sent.push_back(Sent { xid, newest: self.newest_sent, at, opcode, purpose, bytes: 0, refused: None });
        self.note_sent_at(at);
    }

    /// Handles the answer to requests that have left together.
    pub(super) fn batch_answered(
        &mut self,
        batch: Batch,
        zxid: i64,
        result: Result<Response, ErrorCode>,
        now: Duration,
    ) -> Result<(), Malformed> {
        self.under_way.writes -= usize::from(batch.writes());
        self.under_way.more -= batch.more();
        match batch {
            Batch::Write(id) => self.reply(id, result.map_err(RequestError::Refused)),
            Batch::Writes { ids, ops, again } => return self.writes_answered(ids, ops, again, zxid, result, now),
            Batch::Parents(ids, ops) => return self.parents_answered(ids, ops, result, now),
            Batch::Lists { lists, again: true } if result != Err(ErrorCode::Unimplemented) => {
                self.list_together(lists, now);
            }
            Batch::Lists { lists, .. } => return self.lists_answered(lists, result, now),
        }
        Ok(())
    }

    fn writes_answered(
        &mut self,
        ids: Vec<RequestId>,
        ops: Vec<WriteOp>,
        again: bool,
        zxid: i64,
        result: Result<Response, ErrorCode>,
        now: Duration,
    ) -> Result<(), Malformed> {
        let results = match result {
            Ok(Response::Multi(results)) if are_answers(&results, &ops) => results,
            Ok(_) => return self.unreadable(ids),
            // A server in trouble. A second create would leave a second node, and a server that is too busy for one
            // request would get a hundred.
            Err(error) if !error.is_refusal() => {
                self.refuse_all(ids, error);
                return Ok(());
            }
            // The transaction was refused as a whole.
            Err(_) => {
                self.write_each_alone(ids.into_iter().zip(ops.into_iter().map(alone)), now);
                return Ok(());
            }
        };
        let failed = |result: &OpResult| match result {
            OpResult::Failed(error) if *error != ErrorCode::RuntimeInconsistency => Some(*error),
            _ => None,
        };
        if results.iter().any(|result| matches!(result, OpResult::Failed(_))) {
            let (mut others, mut parent_missing) = (Vec::new(), false);
            for ((id, op), result) in ids.into_iter().zip(ops).zip(&results) {
                match failed(result) {
                    Some(error) => {
                        parent_missing |= error == ErrorCode::NoNode && matches!(op, WriteOp::Create(_));
                        self.reply(id, Err(RequestError::Refused(error)));
                    }
                    None => others.push((id, op)),
                }
            }
            match parent_missing && !again {
                true => self.look_for_parents(others, now),
                false => self.write_each_alone(others.into_iter().map(|(id, op)| (id, alone(op))), now),
            }
            return Ok(());
        }
        for (id, result) in ids.into_iter().zip(results) {
            let response = match result {
                // Some servers do not name the transaction of the new node (ZOOKEEPER-4026, ZOOKEEPER-4667). It is this one.
                OpResult::Created { path, stat } => {
                    let stat = stat.filter(|stat| stat.czxid != -1);
                    let stat = stat.unwrap_or(Stat { czxid: zxid, mzxid: zxid, pzxid: zxid, ..Stat::default() });
                    Response::Created { path, stat: Some(stat) }
                }
                _ => Response::Done,
            };
            self.reply(id, Ok(response));
        }
        Ok(())
    }

    /// Makes writes again whose transaction was not carried out because a parent was missing.
    fn look_for_parents(&mut self, mut writes: Vec<(RequestId, WriteOp)>, now: Duration) {
        // A response has the data of as many nodes.
        let most = self.most_lists();
        if most == 1 || writes.len() == 1 {
            return self.write_each_alone(writes.into_iter().map(|(id, op)| (id, alone(op))), now);
        }
        self.lists_came_early();
        while !writes.is_empty() {
            let rest = writes.split_off(most.min(writes.len()));
            let (ids, ops): (Vec<_>, Vec<_>) = std::mem::replace(&mut writes, rest).into_iter().unzip();
            let xid = self.take_xid();
            let reads = ops.iter().map(|op| ReadOp::GetData { path: above(op) });
            request::encode(&mut self.outgoing, xid, &Request::MultiRead(reads.collect()));
            self.note_sent(xid, OpCode::MultiRead, Batch::Parents(ids, ops), now);
        }
    }

    /// What the read shows was true after the requests were made. A parent that is created meanwhile costs one more request, and
    /// one that is deleted meanwhile makes the rest go one by one.
    fn parents_answered(
        &mut self,
        ids: Vec<RequestId>,
        ops: Vec<WriteOp>,
        result: Result<Response, ErrorCode>,
        now: Duration,
    ) -> Result<(), Malformed> {
        let results = match result {
            Ok(Response::Multi(results)) if results.len() == ops.len() => results,
            Ok(_) => return self.unreadable(ids),
            Err(error) if !error.is_refusal() => {
                self.refuse_all(ids, error);
                return Ok(());
            }
            Err(error) => {
                self.lists_together &= error != ErrorCode::Unimplemented;
                self.write_each_alone(ids.into_iter().zip(ops.into_iter().map(alone)), now);
                return Ok(());
            }
        };
        let writes = ids.into_iter().zip(ops);
        let (mut ids, mut ops) = (Vec::new(), Vec::new());
        for ((id, op), result) in writes.zip(results) {
            match (op, result) {
                (WriteOp::Create(_), OpResult::Failed(ErrorCode::NoNode)) => {
                    self.reply(id, Err(RequestError::Refused(ErrorCode::NoNode)));
                }
                (op, result) => {
                    if let OpResult::Data { stat, .. } = &result {
                        self.note_list(&[], Some(stat));
                    }
                    ids.push(id);
                    ops.push(op);
                }
            }
        }
        self.lists_came_early();
        if !ids.is_empty() {
            self.write_together(ids, ops, true, now);
        }
        Ok(())
    }

    fn lists_answered(
        &mut self,
        mut lists: Vec<Listed>,
        result: Result<Response, ErrorCode>,
        now: Duration,
    ) -> Result<(), Malformed> {
        if let [(_, ids)] = &mut lists[..] {
            if let Ok(Response::Children { names, stat }) = &result {
                self.note_list(names, stat.as_ref());
            }
            let ids = std::mem::take(ids);
            self.reply_all(ids, result.map_err(RequestError::Refused));
            return Ok(());
        }
        let results = match result {
            Ok(Response::Multi(results)) if results.len() == 2 * lists.len() => results,
            Ok(_) => return self.unreadable(lists.into_iter().flat_map(|(_, ids)| ids)),
            // A server that is too busy for one request would get a hundred.
            Err(ErrorCode::ThrottledOp) => {
                self.refuse_all(lists.into_iter().flat_map(|(_, ids)| ids), ErrorCode::ThrottledOp);
                return Ok(());
            }
            Err(error) => {
                self.lists_together &= error != ErrorCode::Unimplemented;
                lists.into_iter().for_each(|list| self.list_together(vec![list], now));
                return Ok(());
            }
        };
        let mut results = results.into_iter();
        for (_, ids) in lists {
            let answer = match (results.next(), results.next()) {
                (Some(OpResult::Children(names)), Some(OpResult::Data { stat, .. })) => {
                    self.note_list(&names, Some(&stat));
                    Ok(Response::Children { names, stat: Some(stat) })
                }
                (Some(OpResult::Failed(error)), _) | (_, Some(OpResult::Failed(error))) => {
                    Err(RequestError::Refused(error))
                }
                _ => Err(RequestError::ConnectionLoss),
            };
            self.reply_all(ids, answer);
        }
        Ok(())
    }

    /// Makes writes again whose transaction was not carried out.
    fn write_each_alone(&mut self, requests: impl IntoIterator<Item = (RequestId, Request)>, now: Duration) {
        self.lists_came_early();
        for (id, request) in requests {
            self.write_alone(id, &request, now);
        }
    }

    /// The lists that have left do not show writes that are made again, so they are made again when they are answered.
    fn lists_came_early(&mut self) {
        for sent in &mut self.sent {
            if let Purpose::Batch(Batch::Lists { again, .. }) = &mut sent.purpose {
                *again = true;
            }
        }
    }

    /// Each request gets this result.
    fn reply_all(&mut self, mut ids: Vec<RequestId>, result: Result<Response, RequestError>) {
        let last = ids.pop();
        ids.into_iter().for_each(|id| self.reply(id, result.clone()));
        // Often there is only one, and a long list is not copied.
        if let Some(last) = last {
            self.reply(last, result);
        }
    }

    /// Each request gets the error that they have got together.
    fn refuse_all(&mut self, ids: impl IntoIterator<Item = RequestId>, error: ErrorCode) {
        ids.into_iter().for_each(|id| self.reply(id, Err(RequestError::Refused(error))));
    }

    /// The answer cannot be understood, so the connection is useless.
    pub(super) fn unreadable(&mut self, ids: impl IntoIterator<Item = RequestId>) -> Result<(), Malformed> {
        ids.into_iter().for_each(|id| self.reply(id, Err(RequestError::ConnectionLoss)));
        Err(Malformed)
    }
}
