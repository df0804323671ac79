//! What members ask: shuffles that begin and end, servers that leave, and what is there.

use serde_json::Value as Json;
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
        if let Some(place) = self.place {
            let staying = self.members.iter();
            let staying = staying.filter(|(_, it)| it.hello.is_server() && !it.is_leaving);
            let named = staying.map(|(&id, member)| (self.name(id), &*member.hello.name));
            let servers = place.others(named);
            self.tell(MasterEvent::Avoid { shuffle, servers })?;
        }
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
}
