//! What happens to processes and to the registry.

use std::time::Duration;

use treadle_shuffle_registry::RegisteringEvent;

use super::{Item, Who, World};
use crate::plan::{Fault, HEAL, MASTERS};
use crate::server::Server;

impl World {
    pub(super) fn start(&mut self, name: u64) {
        self.incarnation += 1;
        let earlier = self.servers.iter_mut();
        earlier
            .filter(|server| server.entry.name == format!("s{name}"))
            .for_each(|server| server.is_healthy = false);
        let seed = self.kernel.random.next();
        let server = Server::new(name, self.incarnation, &self.config, seed);
        self.servers.push(server);
        self.begin(Who::Server(self.servers.len() - 1));
    }

    pub(super) fn kill(&mut self, server: usize) {
        let server = &mut self.servers[server];
        server.is_alive = false;
        server.link.epoch += 1;
        server.link.session = None;
    }

    pub(super) fn flap(&mut self, name: u64, times: u64) {
        for number in 0..self.servers.len() {
            if self.servers[number].entry.name == format!("s{name}") {
                self.kill(number);
            }
        }
        self.start(name);
        if times > 0 {
            let next = Item::Flap(name, times - 1);
            self.kernel.schedule(Duration::from_secs(2), next);
        }
    }

    pub(super) fn fault(&mut self, drawn: u64, fault: Fault) -> Result<(), String> {
        let now = self.kernel.now();
        let alive = |server: &usize| self.servers[*server].should_be_listed();
        let alive: Vec<usize> = (0..self.servers.len()).filter(alive).collect();
        if alive.is_empty() {
            return Ok(());
        }
        let number = alive[drawn as usize % alive.len()];
        let who = match drawn % 7 {
            0 => Who::Master(drawn as usize / 7 % MASTERS),
            _ => Who::Server(number),
        };
        let name = self.servers[number].entry.name[1..].parse().unwrap_or(0);
        match fault {
            Fault::Outage { length, forgets } if self.registry.is_up && now + length < HEAL => {
                self.summary.outages += 1;
                self.summary.wiped += u64::from(forgets);
                self.registry.is_up = false;
                self.registry.down_since = now;
                self.kernel.schedule(length, Item::Up(forgets));
            }
            Fault::Outage { .. } => {}
            Fault::Cut { length } => {
                self.summary.cuts += 1;
                self.cut_until.insert(who, now + length);
                self.is_ill(who);
            }
            Fault::Pause { length } => {
                self.summary.pauses += 1;
                self.kernel.pause(who, length);
                let until = self.paused_until.entry(who).or_default();
                *until = (now + length).max(*until);
                self.is_ill(who);
            }
            Fault::Restart { away } => {
                self.summary.restarts += 1;
                self.kill(number);
                self.kernel.schedule(away, Item::Start(name));
            }
            Fault::Duplicate { life } => {
                self.summary.duplicates += 1;
                self.is_ill(Who::Server(number));
                self.start(name);
                if drawn.is_multiple_of(2) {
                    let other = self.servers.len() - 1;
                    self.is_ill(Who::Server(other));
                    self.kernel.schedule(life, Item::Kill(other));
                    // While the other is there, this one goes on writing.
                    self.refresh(number)?;
                    self.kernel
                        .schedule(life * 11 / 10, Item::Fault(0, Fault::Load));
                }
            }
            Fault::Withdraw { away } => {
                self.servers[number].is_leaving = true;
                self.is_ill(Who::Server(number));
                self.server(number, RegisteringEvent::Withdraw)?;
                self.kernel
                    .schedule(away + Duration::from_secs(20), Item::Kill(number));
                self.kernel.schedule(away, Item::Start(name));
            }
            Fault::Flap { times } => {
                self.summary.flapping += 1;
                self.flap(name, times);
            }
            Fault::Load => {
                for number in alive {
                    self.refresh(number)?;
                }
            }
        }
        Ok(())
    }

    /// What happens to a process from now on may be its own fault.
    pub(super) fn is_ill(&mut self, who: Who) {
        match who {
            Who::Server(server) => self.servers[server].is_healthy = false,
            Who::Master(_) => self
                .servers
                .iter_mut()
                .for_each(|server| server.is_healthy = false),
        }
    }
}
