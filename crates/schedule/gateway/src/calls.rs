//! Questions between nodes: who asked what, and who is to answer.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_guards::{InvariantError, ensure, ensure_eq};
use treadle_messages::{Answer, Call, ToClient, ToWorker, fits};
use treadle_types::Value;

use crate::nodes::Node;
use crate::state::Core;

/// Questions of one node that may be open at a time.
const MOST: u32 = 1 << 16;
/// A question that was passed on.
#[derive(Clone, Copy, Debug)]
struct Open {
    asker: Node,
    /// The asker's number for it.
    id: u64,
    target: Node,
}

/// The questions that were passed on and are not answered.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    open: BTreeMap<u64, Open>,
    by_asker: BTreeMap<Node, u32>,
    next: u64,
}

impl Calls {
    fn take(&mut self, id: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        if let Some(count) = self.by_asker.get_mut(&open.asker) {
            *count -= 1;
            if *count == 0 {
                self.by_asker.remove(&open.asker);
            }
        }
        Some(open)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Verifies that what is open is counted, and between nodes that are there.
    pub(crate) fn check(&self, is_there: impl Fn(Node) -> bool) -> Result<(), InvariantError> {
        let mut counts: BTreeMap<Node, u32> = BTreeMap::new();
        for (id, open) in &self.open {
            *counts.entry(open.asker).or_default() += 1;
            ensure!(
                is_there(open.asker) && is_there(open.target),
                "question {id} waits, and somebody is gone: {open:?}"
            );
        }
        ensure_eq!(self.by_asker, counts, "open questions by asker");
        Ok(())
    }
}

/// The scheduler's own errors are plain text.
pub fn error_text(text: impl Into<String>) -> Bytes {
    Value::Str(text.into()).to_bytes().into()
}

impl Core {
    /// A node asks something.
    pub(crate) fn call(&mut self, asker: Node, call: Call) {
        if call.node.is_empty() {
            match self.operate(asker, &call) {
                Ok(Some(answer)) => {
                    let answer = Bytes::from(answer.to_bytes());
                    let what = || format!("the answer to {:?}", call.operation);
                    let answer = match fits(answer.len(), what) {
                        Ok(()) => Ok(answer),
                        Err(too_long) => Err(error_text(too_long.to_string())),
                    };
                    self.answer(asker, call.id, answer);
                }
                Ok(None) => {}
                Err(why) => self.answer(asker, call.id, Err(error_text(why.to_string()))),
            }
            return;
        }
        let Some(target) = self.resolve(&call.node) else {
            let text = match call.node.as_str() {
                "sidecar" => "the scheduler has no Python side".to_owned(),
                node => format!("there is no worker or client called {node:?} here, or no more"),
            };
            return self.answer(asker, call.id, Err(error_text(text)));
        };
        let count = self.calls.by_asker.entry(asker).or_default();
        if *count >= MOST {
            let text = format!("{MOST} questions of this node are not answered yet");
            return self.answer(asker, call.id, Err(error_text(text)));
        }
        *count += 1;
        self.calls.next += 1;
        let number = self.calls.next;
        let open = Open {
            asker,
            id: call.id,
            target,
        };
        self.calls.open.insert(number, open);
        let call = Call {
            id: number,
            node: self.called(asker),
            ..call
        };
        self.ask(target, call);
    }

    /// Tells the sidecar something; whatever it answers is ignored. Returns the number that the answer
    /// will have.
    pub(crate) fn inform_sidecar(&mut self, operation: &str, argument: Value) -> u64 {
        let Some(sidecar) = self.clients.sidecar else {
            return 0;
        };
        self.calls.next += 1;
        let call = Call {
            id: self.calls.next,
            node: String::new(),
            operation: operation.to_owned(),
            argument: argument.to_bytes().into(),
        };
        let number = call.id;
        self.ask(Node::Client(sidecar), call);
        number
    }

    fn ask(&mut self, target: Node, call: Call) {
        match target {
            Node::Worker(worker) => self.tell_worker(worker, ToWorker::Call(call)),
            Node::Client(client) => self.tell_client(client, ToClient::Call(call)),
        }
    }

    /// A node answers something.
    pub(crate) fn answered(&mut self, from: Node, answer: Answer) {
        self.hear_of_steps(from, answer.id);
        let is_its = |open: &Open| open.target == from;
        if !self.calls.open.get(&answer.id).is_some_and(is_its) {
            return;
        }
        if let Some(open) = self.calls.take(answer.id) {
            self.answer(open.asker, open.id, answer.result);
        }
    }

    /// Who has asked what a node answers.
    pub fn asker(&self, answer: &Answer) -> Option<Node> {
        Some(self.calls.open.get(&answer.id)?.asker)
    }

    pub(crate) fn answer(&mut self, asker: Node, id: u64, result: Result<Bytes, Bytes>) {
        let answer = Answer { id, result };
        match asker {
            Node::Worker(worker) => self.tell_worker(worker, ToWorker::Answer(answer)),
            Node::Client(client) => self.tell_client(client, ToClient::Answer(answer)),
        }
    }

    /// A node is gone: it answers nothing any more, and needs no answers.
    pub(crate) fn drop_calls(&mut self, gone: Node, called: &str) {
        let concerned = |open: &Open| open.target == gone || open.asker == gone;
        let open = self.calls.open.iter();
        let ids = open.filter(|(_, open)| concerned(open)).map(|(id, _)| *id);
        let ids: Vec<u64> = ids.collect();
        for id in ids {
            if let Some(open) = self.calls.take(id)
                && open.asker != gone
            {
                let text = format!("{called} is gone, and has not answered");
                self.answer(open.asker, open.id, Err(error_text(text)));
            }
        }
    }

    /// The node that a question names.
    pub fn resolve(&self, called: &str) -> Option<Node> {
        if called == "sidecar" {
            return self.clients.sidecar.map(Node::Client);
        }
        let worker = self.workers.find(called).map(Node::Worker);
        worker.or_else(|| self.clients.find(called).map(Node::Client))
    }

    /// What a node is called in questions.
    pub fn called(&self, node: Node) -> String {
        match node {
            Node::Worker(worker) => {
                let node = self.workers.get(worker);
                node.map_or_else(String::new, |node| node.address.clone())
            }
            Node::Client(client) if self.clients.sidecar == Some(client) => "sidecar".to_owned(),
            Node::Client(client) => {
                let node = self.clients.get(client);
                node.map_or_else(String::new, |node| node.name.clone())
            }
        }
    }
}
