//! Questions between nodes: who asked what, and who is to answer.

use std::collections::HashMap;

use bytes::Bytes;
use treadle_messages::{Answer, Call, ToClient, ToWorker};
use treadle_node_wire::fits;
use treadle_types::Value;

use super::hub::Hub;
use super::nodes::Node;

/// Questions of one node that may be open at a time.
const MOST: u32 = 1 << 16;
/// As many times the largest message may wait for a node; then no questions and answers are added: the
/// node itself stays.
const MOST_WAITING: usize = 2;

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
pub(super) struct Calls {
    open: HashMap<u64, Open>,
    by_asker: HashMap<Node, u32>,
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

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

/// The scheduler's own errors are plain text.
pub(super) fn error(text: impl Into<String>) -> Bytes {
    Value::Str(text.into()).to_bytes().into()
}

fn crowded(node: &str, bytes: usize) -> String {
    format!(
        "{bytes} bytes for {node:?} were dropped, since it has not read those before: ask for less \
         at a time, or scatter large values and pass their futures"
    )
}

impl Hub {
    /// A node asks something.
    pub(super) fn call(&mut self, asker: Node, call: Call) {
        self.counters.calls += 1;
        if call.node.is_empty() {
            match self.operate(asker, &call) {
                Ok(Some(answer)) => {
                    let answer = Bytes::from(answer.to_bytes());
                    let what = || format!("the answer to {:?}", call.operation);
                    let answer = match fits(answer.len(), what) {
                        Ok(()) => Ok(answer),
                        Err(too_long) => Err(error(too_long.to_string())),
                    };
                    self.answer(asker, call.id, answer);
                }
                Ok(None) => {}
                Err(why) => self.answer(asker, call.id, Err(error(why.to_string()))),
            }
            return;
        }
        let Some(target) = self.resolve(&call.node) else {
            let text = match call.node.as_str() {
                "sidecar" => "the scheduler has no Python side".to_owned(),
                node => format!("there is no worker or client called {node:?} here, or no more"),
            };
            return self.answer(asker, call.id, Err(error(text)));
        };
        if !self.has_room(target, call.argument.len()) {
            let text = crowded(&call.node, call.argument.len());
            return self.answer(asker, call.id, Err(error(text)));
        }
        let count = self.calls.by_asker.entry(asker).or_default();
        if *count >= MOST {
            let text = format!("{MOST} questions of this node are not answered yet");
            return self.answer(asker, call.id, Err(error(text)));
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

    /// Tells the sidecar something; whatever it answers is ignored.
    pub(super) fn inform_sidecar(&mut self, operation: &str, argument: Value) {
        let Some(sidecar) = self.clients.sidecar else {
            return;
        };
        self.calls.next += 1;
        let call = Call {
            id: self.calls.next,
            node: String::new(),
            operation: operation.to_owned(),
            argument: argument.to_bytes().into(),
        };
        self.ask(Node::Client(sidecar), call);
    }

    fn ask(&mut self, target: Node, call: Call) {
        match target {
            Node::Worker(worker) => self.tell_worker(worker, &ToWorker::Call(call)),
            Node::Client(client) => self.tell_client(client, &ToClient::Call(call)),
        }
    }

    /// A node answers something.
    pub(super) fn answered(&mut self, from: Node, answer: Answer) {
        let is_its = |open: &Open| open.target == from;
        if !self.calls.open.get(&answer.id).is_some_and(is_its) {
            return;
        }
        if let Some(open) = self.calls.take(answer.id) {
            let bytes = answer.result.as_ref().map_or(0, Bytes::len);
            let result = if self.has_room(open.asker, bytes) {
                answer.result
            } else {
                Err(error(crowded(&self.called(open.asker), bytes)))
            };
            self.answer(open.asker, open.id, result);
        }
    }

    /// Whether a node has been sent so much less than it reads that this can wait for it, too.
    fn has_room(&self, node: Node, bytes: usize) -> bool {
        let waiting = match node {
            Node::Worker(worker) => self.workers.get(worker).map(|node| node.link.kept()),
            Node::Client(client) => self.clients.get(client).map(|node| node.link.kept()),
        };
        let most = MOST_WAITING * self.settings.largest_message as usize;
        bytes == 0 || waiting.is_none_or(|waiting| waiting + bytes <= most)
    }

    /// Answers a node.
    pub(super) fn answer(&mut self, asker: Node, id: u64, result: Result<Bytes, Bytes>) {
        let answer = Answer { id, result };
        match asker {
            Node::Worker(worker) => self.tell_worker(worker, &ToWorker::Answer(answer)),
            Node::Client(client) => self.tell_client(client, &ToClient::Answer(answer)),
        }
    }

    /// A node is gone: it answers nothing any more, and needs no answers.
    pub(super) fn drop_calls(&mut self, gone: Node, called: &str) {
        let concerned = |open: &Open| open.target == gone || open.asker == gone;
        let mut ids: Vec<u64> = self
            .calls
            .open
            .iter()
            .filter(|(_, open)| concerned(open))
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(open) = self.calls.take(id)
                && open.asker != gone
            {
                let text = format!("{called} is gone, and has not answered");
                self.answer(open.asker, open.id, Err(error(text)));
            }
        }
    }

    /// The node that a question names.
    fn resolve(&self, called: &str) -> Option<Node> {
        if called == "sidecar" {
            return self.clients.sidecar.map(Node::Client);
        }
        let worker = self.workers.find(called).map(Node::Worker);
        worker.or_else(|| self.clients.find(called).map(Node::Client))
    }

    /// What a node is called in questions.
    pub(super) fn called(&self, node: Node) -> String {
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
