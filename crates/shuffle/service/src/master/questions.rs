//! What members ask: shuffles that begin and end, servers that leave, and what is there.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use treadle_reactor::awake;
use treadle_shuffle::{ApplicationId, MasterEvent, ShuffleId, Spec, Tenant};
use treadle_types::Runs;

use crate::master::known::Known;
use crate::master::membership::Member;
use crate::master::state::State;
use crate::master::{MOST_PARTITIONS, MOST_SHUFFLES};
use crate::wire::{self, Answer, Call, Claim, Register, What};

impl State {
    /// Answers a member. `registry` says what is known of the registry, if that is no master.
    pub(super) fn answer(&mut self, from: u32, call: Call, registry: Option<Json>) -> Answer {
        let mut answer = Answer {
            number: call.number,
            ..Answer::default()
        };
        let done = match call.what {
            Some(What::Register(register)) => self.register(from, register, &mut answer),
            Some(What::End(shuffle)) => self.end_asked(from, ShuffleId(shuffle), &mut answer),
            Some(What::About(shuffle)) => match self.shuffles.get(&ShuffleId(shuffle)) {
                None => Err(format!("there is no shuffle {shuffle}, or it has ended")),
                Some(known) => {
                    known.tell(&mut answer);
                    Ok(())
                }
            },
            Some(What::Drain(name)) => self.drain(from, &name),
            Some(What::Servers(_)) => {
                self.follow(from);
                Ok(())
            }
            Some(What::Ended(records)) => self.records.adopt(&records),
            Some(What::Claim(claim)) => self.claim(from, claim, &mut answer),
            Some(What::Master(number)) => {
                let at = self.registry.master(number).unwrap_or_default();
                answer.text = at.into();
                Ok(())
            }
            Some(What::State(_)) => {
                answer.text = self.json(registry);
                Ok(())
            }
            Some(What::Records(_)) => {
                let machine = &self.machine;
                let all = self.records.all(|shuffle| machine.progress(shuffle));
                answer.text = all.to_string();
                Ok(())
            }
            None => Err("the shuffle master does not know this question".into()),
        };
        answer.refused = done.err().unwrap_or_default();
        answer
    }

    fn register(&mut self, from: u32, is: Register, answer: &mut Answer) -> Result<(), String> {
        let hello = self.members.get(&from).map(|it| &it.hello);
        let tenant = hello.map_or_else(Tenant::default, |hello| Tenant {
            application: ApplicationId(hello.application),
            priority: hello.priority.max(1),
        });
        if !(1..=2).contains(&is.copies) {
            return Err(format!("copies={}: give 1 or 2", is.copies));
        }
        let most = wire::MOST_PARTS;
        if is.maps > most || is.partitions > most {
            return Err(format!(
                "{} maps and {} partitions: a shuffle has at most {most} of each",
                is.maps, is.partitions
            ));
        }
        if is.name.len() > wire::LONGEST_NAME || is.note.len() > wire::LONGEST_NOTE {
            return Err("its name or the description of its rows is too long".into());
        }
        let running = self.shuffles.values();
        let running = running.filter(|known| known.tenant.application == tenant.application);
        let (count, partitions) = running.fold((0, 0), |(count, partitions), known| {
            (count + 1, partitions + u64::from(known.is.partitions))
        });
        if count >= MOST_SHUFFLES || partitions > MOST_PARTITIONS {
            return Err(
                "too many shuffles of this application run: end those that are not needed".into(),
            );
        }
        let client = hello.map_or_else(String::new, |hello| hello.name.clone());
        let outputs = match is.outputs.is_empty() {
            true => Some(Runs::range(0, u64::from(is.partitions))),
            false => wire::runs(&is.outputs),
        };
        let outputs = outputs.ok_or("its outputs have to be ascending ranges of partitions")?;
        let shuffle = ShuffleId(self.last_shuffle + 1);
        let spec = Spec {
            tenant,
            maps: is.maps,
            partitions: is.partitions,
            outputs,
            aligned: None,
            copies: is.copies,
            is_handed_over: true,
            expected: match is.expected {
                0 => self.pushed.of(&is),
                expected => expected,
            },
            preferred: Vec::new(),
            committed: is.committed.map(Into::into),
        };
        let event = MasterEvent::Register {
            shuffle,
            spec: spec.clone(),
        };
        self.tell(event)?;
        self.records.begun(shuffle, &spec, &is.name, &client);
        self.last_shuffle = shuffle.0;
        self.leases.grant(tenant.application, shuffle, awake::now());
        self.shuffles.insert(shuffle, Known::new(tenant, is));
        answer.shuffle = shuffle.0;
        answer.domains = self.domains();
        Ok(())
    }

    /// A member says that a shuffle is over. `Err`: it is not its to end.
    fn end_asked(
        &mut self,
        from: u32,
        shuffle: ShuffleId,
        answer: &mut Answer,
    ) -> Result<(), String> {
        let application = self.members.get(&from).map(|it| it.hello.application);
        let known = self.shuffles.get(&shuffle);
        let is_others = known.is_some_and(|it| Some(it.tenant.application.0) != application);
        if is_others {
            return Err(format!(
                "shuffle {} is another application's: give Service the same application= to end it",
                shuffle.0
            ));
        }
        answer.committed = self.machine.committed(shuffle).map(Into::into);
        self.end_shuffle(shuffle);
        Ok(())
    }

    /// A member says that it is the master of an application.
    fn claim(&mut self, from: u32, claim: Claim, answer: &mut Answer) -> Result<(), String> {
        if claim.address.is_empty() || claim.address.len() > wire::LONGEST_NAME {
            return Err("the address of a master is missing, or too long".into());
        }
        answer.text = self.registry.claim(from, claim);
        Ok(())
    }

    /// Nobody is left who could use a shuffle.
    pub(super) fn end_shuffle(&mut self, shuffle: ShuffleId) {
        self.leases.end(shuffle);
        let had = self.machine.committed(shuffle);
        if let (Some(known), Some(had)) = (self.shuffles.remove(&shuffle), had) {
            self.pushed.ended(&known.is, had.bytes);
        }
        let ended = self.tell(MasterEvent::End(shuffle));
        debug_assert_eq!(ended, Ok(()));
    }

    fn drain(&mut self, from: u32, name: &str) -> Result<(), String> {
        let is_meant = |(id, member): &(&u32, &Member)| match name.is_empty() {
            true => **id == from,
            false => member.hello.name == name && member.hello.is_server(),
        };
        // Of two with one name, the earlier one leaves already.
        let Some((&id, member)) = self.members.iter().rev().find(is_meant) else {
            return Err(format!("no shuffle server is called {name}"));
        };
        // It tells its other masters.
        if id != from {
            wire::send_bytes(&member.peer, wire::LEAVE, Vec::new());
        }
        self.ask_to_leave(id);
        self.servers_changed();
        Ok(())
    }

    pub(super) fn json(&self, registry: Option<Json>) -> String {
        let servers = self.members.iter();
        let servers = servers.filter(|(_, member)| member.hello.is_server());
        let mut partitions = BTreeMap::<u32, u64>::new();
        let plans = self.shuffles.values().flat_map(|known| &known.plan);
        for group in plans.flat_map(|plan| &plan.groups) {
            for holder in group.holders() {
                *partitions.entry(holder.node).or_default() += group.partitions.len();
            }
        }
        let servers = servers.map(|(id, member)| {
            let room = member.hello.room.unwrap_or_default();
            json!({
                "id": id,
                "name": member.hello.name,
                "address": member.hello.address,
                "domain": member.hello.domain,
                "rack": member.hello.rack,
                "host_kind": member.hello.host_kind,
                "version": member.hello.version,
                "protocol": member.protocol,
                "factor": member.hello.weight,
                "weight": member.weight,
                "free_bytes": room.free,
                "held_bytes": room.held,
                "waiting_requests": room.waiting,
                "rate": room.rate,
                "share": f64::from(self.machine.share(self.name(*id))) / 100.0,
                "full": room.is_full,
                "partitions": partitions.get(id).copied().unwrap_or(0),
                "leaving": member.is_leaving,
            })
        });
        let shuffles = self.shuffles.iter().filter_map(|(id, known)| {
            let progress = self.machine.progress(*id)?;
            let groups = known.plan.iter().flat_map(|plan| &plan.groups);
            let copies = known.is.copies as usize;
            // One in a remote store is enough.
            let in_store = groups.clone().filter(|group| group.uploaded.is_some());
            let all = groups.clone().count();
            let fewer =
                groups.filter(|group| group.copies.len() < copies && group.uploaded.is_none());
            Some(json!({
                "shuffle": id.0,
                "name": known.is.name,
                "application": format!("{:016x}", known.tenant.application.0),
                "priority": known.tenant.priority,
                "maps": known.is.maps,
                "partitions": known.is.partitions,
                "copies": known.is.copies,
                "transferred": progress.transferred,
                "rows": progress.tally.rows,
                "bytes": progress.tally.bytes,
                "generation": progress.generation.0,
                "committed": progress.is_committed,
                "groups": all,
                "groups_in_remote_store": in_store.count(),
                "groups_with_fewer_copies": fewer.count(),
                "maps_to_run_again": known.lost.len(),
            }))
        });
        json!({
            "servers": servers.collect::<Vec<_>>(),
            "shuffles": shuffles.collect::<Vec<_>>(),
            "clients": self.members.len() - self.servers().count(),
            "masters": self.registry.masters().map(|claim| json!({
                "application": format!("{:016x}", claim.application),
                "address": claim.address,
            })).collect::<Vec<_>>(),
            "registry": registry,
        })
        .to_string()
    }
}
