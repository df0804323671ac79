//! Plans with several applications, each with a master of its own, on the same servers.

use std::time::Duration;

use treadle_sim_kernel::Random;

use crate::masters::{Application, LEASE};
use crate::plan::{Fault, Job, Plan, Service};

impl Plan {
    /// Two to five applications on two to five servers. Some of their masters die, stand still, come back, are
    /// replaced, or say what is not theirs to say; servers are killed, too. To some applications nothing happens.
    pub fn masters(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6d61_7374);
        let mut plan = Self::service(random.next());
        plan.seed = seed;
        plan.faults.clear();
        plan.jobs.clear();
        (plan.drops, plan.flips, plan.unreadable, plan.lates) = (0, 0, 0, 0);
        plan.config.lease = LEASE;
        let servers = random.between(2, 5) as u32;
        plan.service = plan.service.map(|service| Service { servers, ..service });
        plan.places = servers;
        let count = random.between(2, 5) as usize;
        for number in 0..count {
            plan.add_application(number as u64, Duration::ZERO, &mut random);
        }
        // What happens to servers happens to all.
        let is_quiet = random.chance(60);
        for _ in 0..random.between(1, 4) {
            let at = random.micros(0, 20_000);
            let master = random.index(count);
            plan.masters[master].is_undisturbed = false;
            plan.draw_master_fault(master, at, &mut random);
        }
        if !is_quiet {
            for application in &mut plan.masters {
                application.is_undisturbed = false;
            }
            for _ in 0..random.between(1, 4) {
                let at = random.micros(0, 30_000);
                let fault = plan.draw_server_fault(&mut random);
                plan.faults.push((at, fault));
            }
        }
        plan
    }

    /// The same with a remote store that is slow, refuses, loses and alters, with full disks, and with servers that are
    /// killed in each plan.
    pub fn masters_with_store(seed: u64) -> Self {
        let mut plan = Self::masters(seed);
        plan.add_store(seed);
        let mut random = Random::new(seed ^ 0x6b11_0000);
        if let Some(store) = &mut plan.store {
            // Masters that are refused ask again and again, for as long as jobs take.
            (store.slow, store.refuses) = (store.slow.min(2_000), store.refuses.min(20));
        }
        for application in &mut plan.masters {
            application.is_undisturbed = false;
        }
        for _ in 0..random.between(1, 4) {
            let at = random.micros(5_000, 60_000);
            let fault = plan.draw_server_fault(&mut random);
            plan.faults.push((at, fault));
        }
        plan
    }

    /// Three applications on three servers. The first one stands still for longer than its lease from each of
    /// many moments on, and another one takes its place meanwhile.
    pub fn replaced(at: u64) -> Self {
        let mut plan = Self::masters(at);
        plan.faults.clear();
        plan.masters.clear();
        plan.jobs.clear();
        plan.places = plan.servers();
        let mut random = Random::new(at);
        for number in 0..3 {
            plan.add_application(number, Duration::ZERO, &mut random);
        }
        plan.replace(0, Duration::from_micros(100 * at), &mut random);
        plan
    }

    fn add_application(&mut self, number: u64, at: Duration, random: &mut Random) {
        let first = self.places + 1;
        self.places += random.between(1, 2) as u32;
        let master = self.masters.len();
        self.masters.push(Application {
            number,
            at,
            clients: first..self.places + 1,
            is_undisturbed: true,
        });
        for _ in 0..random.between(1, 2) {
            let job = Job {
                master,
                sides: 1,
                is_deterministic: true,
                cancel: None,
                ..self.draw_job(random)
            };
            self.jobs.push(Job {
                at: at + job.at,
                ..job
            });
        }
    }

    fn draw_master_fault(&mut self, master: usize, at: Duration, random: &mut Random) {
        let fault = match random.below(10) {
            0..4 => {
                if random.chance(50) {
                    // It comes back, as another one.
                    let back = at + random.micros(100, 60_000);
                    self.add_successor(master, back, random);
                }
                Fault::KillMaster {
                    master,
                    is_told: random.chance(50),
                }
            }
            4..7 => Fault::PauseMaster {
                master,
                length: random.micros(1_000, 100_000),
            },
            7..8 => return self.replace(master, at, random),
            _ => Fault::Stray { master },
        };
        self.faults.push((at, fault));
    }

    fn replace(&mut self, master: usize, at: Duration, random: &mut Random) {
        let length = random.micros(60_000, 200_000);
        self.masters[master].is_undisturbed = false;
        self.faults
            .push((at, Fault::PauseMaster { master, length }));
        self.add_successor(master, at + random.micros(100, 30_000), random);
    }

    fn add_successor(&mut self, master: usize, at: Duration, random: &mut Random) {
        let number = self.masters[master].number;
        self.add_application(number, at, random);
        if let Some(successor) = self.masters.last_mut() {
            // Its own servers come and go while the first one is there.
            successor.is_undisturbed = false;
        }
    }

    fn draw_server_fault(&self, random: &mut Random) -> Fault {
        let place = random.between(1, u64::from(self.servers())) as u32;
        match random.below(4) {
            0..2 => Fault::Kill {
                place,
                noticed: random.micros(100, 20_000),
                back: random.micros(50, 30_000),
            },
            2 => Fault::Pause {
                place,
                length: random.micros(1_000, 60_000),
            },
            _ => Fault::Reset { place },
        }
    }
}
