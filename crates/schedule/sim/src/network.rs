//! Connections: messages arrive in order, some time after they were sent.

use std::time::Duration;

use treadle_messages::{FromClient, FromWorker, ToClient, ToWorker};
use treadle_types::{Command, Report, WorkerId};

use crate::kernel::Link;
use crate::plan::Node;
use crate::universe::Key;
use crate::world::{Item, Pid, World};

/// A connection between the scheduler and a worker or a client.
pub(crate) struct Connection {
    pub(crate) node: Node,
    /// The worker's process.
    pub(crate) process: Option<Pid>,
    /// From the scheduler and to it.
    links: [Link; 2],
    /// What is still under way to the scheduler is lost.
    pub(crate) is_broken: bool,
    pub(crate) is_closed: [bool; 2],
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction {
    pub(crate) connection: usize,
    pub(crate) to_server: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Message {
    // From workers.
    Register(usize),
    Report(Report),
    /// The shuffle plane to its master, and questions of tasks.
    FromWorker(Box<FromWorker>),
    // To workers.
    Welcome(WorkerId),
    Command(Command),
    Leave,
    /// What the shuffle plane hears, and answers.
    ToWorker(Box<ToWorker>),
    // From clients.
    Hello,
    Client(Box<FromClient>),
    /// Calls, which only Python makes: more copies of a value, or the value elsewhere.
    Replicate(Key, u32),
    Move(Key),
    // To clients.
    ToClient(Box<ToClient>),
    // Both ways.
    Closed,
}

impl Message {
    pub(crate) fn is_periodic(&self) -> bool {
        matches!(self, Self::Report(Report::Health { .. }))
    }
}

impl World {
    pub(crate) fn connect(&mut self, node: Node, process: Option<Pid>) -> usize {
        self.connections.push(Connection {
            node,
            process,
            links: Default::default(),
            is_broken: false,
            is_closed: [false; 2],
        });
        self.connections.len() - 1
    }

    pub(crate) fn send_to_server(&mut self, connection: usize, message: Message) {
        self.send(connection, true, message);
    }

    pub(crate) fn send_from_server(&mut self, connection: usize, message: Message) {
        self.send(connection, false, message);
    }

    /// Sends after everything that was sent before on the connection; nothing more is sent on it.
    pub(crate) fn close(&mut self, connection: usize, to_server: bool, delay: Duration) {
        let end = &mut self.connections[connection];
        if !std::mem::replace(&mut end.is_closed[usize::from(to_server)], true) {
            self.transmit(connection, to_server, Message::Closed, delay);
        }
    }

    /// Sends something, in order with the rest, that is not to change when that arrives: it draws
    /// nothing, and travels no longer than anything else.
    pub(crate) fn send_with_other_stream(
        &mut self,
        connection: usize,
        to_server: bool,
        message: Message,
    ) {
        if !self.connections[connection].is_closed[usize::from(to_server)] {
            let latency = self.least_latency();
            self.arrive(connection, to_server, message, latency);
        }
    }

    pub(crate) fn least_latency(&self) -> Duration {
        Duration::from_micros(self.plan.latency.0)
    }

    fn send(&mut self, connection: usize, to_server: bool, message: Message) {
        if !self.connections[connection].is_closed[usize::from(to_server)] {
            self.transmit(connection, to_server, message, Duration::ZERO);
        }
    }

    fn transmit(&mut self, connection: usize, to_server: bool, message: Message, delay: Duration) {
        let latency = self.latency();
        self.arrive(connection, to_server, message, latency + delay);
    }

    fn arrive(&mut self, connection: usize, to_server: bool, message: Message, delay: Duration) {
        let link = &mut self.connections[connection].links[usize::from(to_server)];
        let at = link.arrival(self.kernel.now() + delay);
        let link = Direction {
            connection,
            to_server,
        };
        self.kernel.schedule_at(at, Item::Deliver(link, message));
    }

    pub(crate) fn latency(&mut self) -> Duration {
        let (low, high) = self.plan.latency;
        self.kernel.random.micros(low, high)
    }

    /// How long so many bytes travel.
    pub(crate) fn transfer(&mut self, nbytes: u64) -> Duration {
        self.latency() + Duration::from_micros(nbytes * 1_000_000 / self.plan.bandwidth)
    }

    pub(crate) fn deliver(&mut self, link: Direction, message: Message) -> Result<(), String> {
        let connection = &self.connections[link.connection];
        if link.to_server {
            if connection.is_broken && !matches!(message, Message::Closed) {
                return Ok(());
            }
            return self.server_told(link.connection, message);
        }
        match (connection.node, connection.process) {
            (Node::Machine(_), Some(pid)) => self.process_told(pid, message),
            (Node::Client(client), _) => self.client_told(client, message),
            _ => Ok(()),
        }
    }
}
