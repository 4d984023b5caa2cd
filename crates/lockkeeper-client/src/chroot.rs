//! The prefix of every path of a client.

use std::sync::Arc;

use lockkeeper_wire::{OpResult, ReadOp, Request, Response, WriteOp};

/// Empty, or an absolute path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chroot(Option<Arc<str>>);

impl Chroot {
    /// Checks the path. The empty path and `/` mean no prefix.
    pub(crate) fn new(path: &str) -> Result<Chroot, &'static str> {
        if matches!(path, "" | "/") {
            return Ok(Chroot(None));
        }
        for name in path.split('/').skip(1) {
            match name {
                "" => return Err("has an empty component"),
                "." | ".." => return Err("contains \".\" or \"..\""),
                _ if name.contains('\0') => return Err("contains a NUL character"),
                _ => {}
            }
        }
        Ok(Chroot(Some(Arc::from(path))))
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or("")
    }

    /// Adds the prefix to the paths of a request.
    pub(crate) fn enter(&self, request: &mut Request) {
        let Some(prefix) = &self.0 else { return };
        let enter = |path: &mut String| match path.as_str() {
            "/" => prefix.as_ref().clone_into(path),
            // The server refuses other paths, so they must not become valid.
            _ if path.starts_with('/') => path.insert_str(0, prefix),
            _ => {}
        };
        match request {
            Request::Create(create) => enter(&mut create.path),
            Request::Delete(versioned) => enter(&mut versioned.path),
            Request::SetData(set) => enter(&mut set.path),
            Request::Exists(watched)
            | Request::GetData(watched)
            | Request::GetChildren(watched)
            | Request::GetChildren2(watched) => enter(&mut watched.path),
            Request::GetAcl { path }
            | Request::SetAcl { path, .. }
            | Request::AddWatch { path, .. }
            | Request::GetAllChildrenNumber { path }
            | Request::Sync { path }
            | Request::CheckWatches { path, .. }
            | Request::RemoveWatches { path, .. } => enter(path),
            Request::GetEphemerals { prefix: path } => {
                if path.is_empty() {
                    path.push('/');
                }
                enter(path);
            }
            Request::Multi(ops) => ops.iter_mut().for_each(|op| match op {
                WriteOp::Create(create) => enter(&mut create.path),
                WriteOp::SetData(set) => enter(&mut set.path),
                WriteOp::Delete(versioned) | WriteOp::Check(versioned) => enter(&mut versioned.path),
            }),
            Request::MultiRead(ops) => ops.iter_mut().for_each(|op| match op {
                ReadOp::GetData { path } | ReadOp::GetChildren { path } => enter(path),
            }),
            Request::SetWatches(_)
            | Request::WhoAmI
            | Request::Ping
            | Request::CloseSession
            | Request::Refused { .. } => {}
        }
    }

    /// Returns the path without the prefix; `None` for a path outside of it.
    fn strip<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(self.as_str())?;
        if rest.is_empty() { Some("/") } else { rest.starts_with('/').then_some(rest) }
    }

    /// Removes the prefix from a path.
    pub(crate) fn leave_path(&self, path: &mut Arc<str>) {
        if self.0.is_some()
            && let Some(rest) = self.strip(path)
        {
            *path = Arc::from(rest);
        }
    }

    /// Removes the prefix from the paths of a response.
    pub(crate) fn leave(&self, mut response: Response) -> Response {
        if self.0.is_none() {
            return response;
        }
        match &mut response {
            Response::Created { path, .. } => self.leave_path(path),
            Response::Path(path) => {
                if let Some(rest) = self.strip(path) {
                    *path = rest.to_owned();
                }
            }
            Response::Ephemerals(paths) => {
                // The prefix `/app` finds the nodes below `/apples` too.
                paths.retain(|path| self.strip(path).is_some());
                paths.iter_mut().for_each(|path| self.leave_path(path));
            }
            Response::Multi(results) => results.iter_mut().for_each(|result| {
                if let OpResult::Created { path, .. } = result {
                    self.leave_path(path);
                }
            }),
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(chroot: &str, path: &str) -> String {
        let mut request = Request::Sync { path: path.to_owned() };
        Chroot::new(chroot).unwrap().enter(&mut request);
        match request {
            Request::Sync { path } => path,
            _ => unreachable!(),
        }
    }

    #[test]
    fn every_valid_path_gets_the_prefix_and_an_invalid_one_stays_invalid() {
        assert_eq!(["/", "/a", "", "a"].map(|path| sent("/app", path)), ["/app", "/app/a", "", "a"]);
        assert_eq!(["/", "/a"].map(|path| sent("", path)), ["/", "/a"]);
    }

    #[test]
    fn a_returned_path_has_no_prefix_and_nodes_outside_are_not_returned() {
        let chroot = Chroot::new("/app").unwrap();
        let paths = ["/app", "/app/a", "/apples/b"].map(Arc::from).to_vec();
        assert_eq!(chroot.leave(Response::Ephemerals(paths)), Response::Ephemerals(vec!["/".into(), "/a".into()]));
    }
}
