//! What befalls the processes: they end, stop, lose their connections, and others join.

use treadle_broadcast::{CastId, Event, Neighbour, Runs};
use treadle_types::{Cause, ClientId};

use super::{Item, Pid, World};
use crate::network::Body;
use crate::plan::Fault;

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(position) => {
                if let Some(pid) = self.engine(position) {
                    self.kill(pid);
                    let most = self.plan.detection.as_micros() as u64;
                    let wait = self.kernel.random.micros(100, most);
                    self.kernel.schedule(wait, Item::Declare(pid));
                }
            }
            Fault::Pause(position, length) => {
                if let Some(pid) = self.engine(position)
                    && self.kernel.paused_until(pid).is_none()
                {
                    self.kernel.pause(pid, length);
                    let timeout = self.plan.timeout;
                    if length > timeout {
                        self.kernel.schedule(timeout, Item::Declare(pid));
                    }
                    self.kernel.schedule(length, Item::Wake(pid));
                }
            }
            Fault::Cut(one, other, length) => {
                if let (Some(one), Some(other)) = (self.node(one), self.node(other))
                    && one != other
                {
                    self.kernel.cut(one, other, length);
                    self.sever(one, other, false);
                }
            }
            Fault::Isolate(position, length) => {
                if let Some(pid) = self.engine(position) {
                    self.kernel.isolate(pid, length);
                    for other in 0..self.procs.len() {
                        if other != pid {
                            self.sever(pid, other, false);
                        }
                    }
                }
            }
            Fault::KillClient(client) => {
                let pid = self.clients[client];
                if self.procs[pid].is_alive {
                    self.kill(pid);
                    self.oracle.clients_gone.insert(ClientId(client as u32));
                    let most = self.plan.detection.as_micros() as u64;
                    let wait = self.kernel.random.micros(100, most);
                    self.kernel.schedule(wait, Item::Declare(pid));
                }
            }
        }
    }

    pub(super) fn kill(&mut self, pid: Pid) {
        self.procs[pid].is_alive = false;
        let lingers = self.kernel.random.chance(50);
        for other in 0..self.procs.len() {
            if other != pid {
                self.sever(pid, other, lingers);
            }
        }
    }

    /// The scheduler says that a process is gone.
    pub(super) fn declare(&mut self, pid: Pid) {
        let is_back = self.procs[pid].is_alive && self.kernel.paused_until(pid).is_none();
        if is_back || !self.declared.insert(pid) {
            return;
        }
        let neighbour = self.procs[pid].neighbour;
        let lingers = self.kernel.random.chance(50);
        for other in 0..self.procs.len() {
            if other == pid || !self.procs[other].is_alive {
                continue;
            }
            let event = match neighbour {
                Neighbour::Worker(worker) => Event::Gone(worker, Cause::Unreachable),
                Neighbour::Top(client) => Event::ClientGone(client),
            };
            let wait = self.kernel.random.micros(0, 5_000);
            self.kernel.schedule(wait, Item::Event(other, event));
            self.sever(pid, other, lingers);
        }
        if let Neighbour::Worker(worker) = neighbour {
            self.oracle.declared.insert(u64::from(worker.0));
        }
    }

    /// A process goes on. It takes in what waited for it, and does not know that it is a stranger.
    pub(super) fn wake(&mut self, pid: Pid) {
        if self.procs[pid].is_alive && self.declared.contains(&pid) {
            let wait = self.kernel.random.micros(0, 20_000);
            self.kernel.schedule(wait, Item::Stranger(pid));
        }
    }

    pub(super) fn join(&mut self, host: u32) -> Result<(), String> {
        let member = self.add_engine(host);
        let engine = u64::from(member.worker.0);
        for client in 0..self.clients.len() {
            let pid = self.clients[client];
            if !self.procs[pid].is_alive {
                continue;
            }
            let introduction = Event::Introduce(vec![member.clone()]);
            self.handle(pid, introduction, Body::None)?;
            let session = ClientId(client as u32);
            let open = self.oracle.open(session);
            if !open.is_empty() && self.kernel.random.chance(70) {
                let number = self.kernel.random.pick(&open);
                self.oracle.extend(CastId { session, number }, engine);
                let members = Runs::one(engine);
                self.handle(pid, Event::Extend { number, members }, Body::None)?;
            }
        }
        Ok(())
    }
}
