//! What is there, for people and programs: all of it as JSON, and what the dashboard has of it.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use treadle_shuffle::ShuffleId;

use crate::master::known::Known;
use crate::master::state::State;

/// Servers, applications, shuffles that run, and some that have ended, of the dashboard.
const MOST_SERVERS: usize = 500;
const MOST_APPLICATIONS: usize = 100;
const MOST_RUNNING: usize = 200;
const MOST_ENDED: usize = 100;
/// What the dashboard has of a record as it is.
const BRIEF: [&str; 19] = [
    "name",
    "application",
    "client",
    "stages",
    "state",
    "phase",
    "began",
    "ended",
    "seconds",
    "inputs",
    "transferred",
    "partitions",
    "rows",
    "bytes",
    "expected_bytes",
    "repeated",
    "copies",
    "more_troubles",
    "failure",
];
/// Troubles of a shuffle, the first ones.
const MOST_TROUBLES: usize = 8;

/// An application, as far as its shuffles say.
#[derive(Default)]
struct Application {
    processes: u64,
    shuffles: u64,
    priority: u32,
    rows: u64,
    bytes: u64,
    master: Option<String>,
}

impl State {
    pub(super) fn json(&self, registry: Option<Json>) -> String {
        let shuffles = self.shuffles.iter();
        let shuffles = shuffles.filter_map(|(id, known)| self.shuffle(*id, known));
        json!({
            "servers": self.server_rows(),
            "shuffles": shuffles.collect::<Vec<_>>(),
            "clients": self.clients(),
            "masters": self.registry.masters().map(|claim| json!({
                "application": format!("{:016x}", claim.application),
                "address": claim.address,
            })).collect::<Vec<_>>(),
            "registry": registry,
        })
        .to_string()
    }

    /// The same for the dashboard, with records: of much, the latest.
    pub(super) fn shown(&self, registry: Option<Json>) -> Json {
        let mut servers = self.server_rows();
        let more_servers = servers.len().saturating_sub(MOST_SERVERS);
        servers.truncate(MOST_SERVERS);
        let running = self.shuffles.iter().rev().take(MOST_RUNNING);
        let running = running.filter_map(|(id, known)| {
            let Json::Object(state) = self.shuffle(*id, known)? else {
                return None;
            };
            let progress = self.machine.progress(*id)?;
            let mut row = brief(&self.records.running(*id, progress)?);
            for (name, value) in state {
                if row.get(&name).is_none() {
                    row[&name] = value;
                }
            }
            Some(row)
        });
        let (applications, more_applications) = self.applications();
        json!({
            "role": "master",
            "servers": servers,
            "more_servers": more_servers,
            "applications": applications,
            "more_applications": more_applications,
            "clients": self.clients(),
            "registry": registry,
            "running": running.collect::<Vec<_>>(),
            "more_running": self.shuffles.len().saturating_sub(MOST_RUNNING),
            "ended": self.records.ended().take(MOST_ENDED).map(brief).collect::<Vec<_>>(),
        })
    }

    fn clients(&self) -> usize {
        self.members.len() - self.servers().count()
    }

    fn server_rows(&self) -> Vec<Json> {
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
                "slow": member.slow_until.is_some(),
                "partitions": partitions.get(id).copied().unwrap_or(0),
                "leaving": member.is_leaving,
            })
        });
        servers.collect()
    }

    fn shuffle(&self, id: ShuffleId, known: &Known) -> Option<Json> {
        let progress = self.machine.progress(id)?;
        let groups = known.plan.iter().flat_map(|plan| &plan.groups);
        let copies = known.is.copies as usize;
        // One in a remote store is enough.
        let in_store = groups.clone().filter(|group| group.uploaded.is_some());
        let all = groups.clone().count();
        let fewer = groups.filter(|group| group.copies.len() < copies && group.uploaded.is_none());
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
    }

    /// Applications with their shuffles here, those with the most bytes first, and how many more there are.
    fn applications(&self) -> (Vec<Json>, usize) {
        let mut all = BTreeMap::<u64, Application>::new();
        for member in self.members.values().filter(|it| !it.hello.is_server()) {
            all.entry(member.hello.application).or_default().processes += 1;
        }
        for (id, known) in &self.shuffles {
            let one = all.entry(known.tenant.application.0).or_default();
            one.shuffles += 1;
            one.priority = one.priority.max(known.tenant.priority);
            if let Some(progress) = self.machine.progress(*id) {
                one.rows = one.rows.saturating_add(progress.tally.rows);
                one.bytes = one.bytes.saturating_add(progress.tally.bytes);
            }
        }
        for claim in self.registry.masters() {
            let one = all.entry(claim.application).or_default();
            one.master = Some(claim.address.clone());
        }
        let more = all.len().saturating_sub(MOST_APPLICATIONS);
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(number, one)| (u64::MAX - one.bytes, *number));
        let rows = all.into_iter().take(MOST_APPLICATIONS);
        let rows = rows.map(|(number, one)| {
            json!({
                "application": format!("{number:016x}"),
                "processes": one.processes,
                "shuffles": one.shuffles,
                "priority": (one.shuffles > 0).then_some(one.priority),
                "rows": one.rows,
                "bytes": one.bytes,
                "master": one.master,
            })
        });
        (rows.collect(), more)
    }
}

/// What the dashboard has of a record: without lists that grow with servers and partitions. A master of an
/// application may have made it, so nothing is taken for granted.
fn brief(record: &Json) -> Json {
    let mut row = serde_json::Map::new();
    for name in BRIEF {
        if let Some(value) = record.get(name).filter(|value| !value.is_null()) {
            row.insert(name.into(), value.clone());
        }
    }
    let servers = record.get("servers").and_then(Json::as_array);
    row.insert("servers".into(), json!(servers.map(Vec::len)));
    let largest = record.pointer("/sizes/largest/0/1");
    row.insert("largest".into(), json!(largest));
    let spilled = record.pointer("/work/spilled_bytes");
    row.insert("spilled_bytes".into(), json!(spilled));
    let troubles = record.get("troubles").and_then(Json::as_array);
    let troubles = troubles.map(|all| all.iter().take(MOST_TROUBLES).collect::<Vec<_>>());
    row.insert("troubles".into(), json!(troubles.unwrap_or_default()));
    row.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_cut_to_what_the_dashboard_has() {
        let record = json!({
            "name": "s",
            "servers": vec!["a"; 1_000],
            "sizes": {"largest": [[3, 77], [1, 5]], "bars": vec![1; 64]},
            "troubles": vec![json!({"time": 1.0, "what": "lost"}); 32],
            "work": {"spilled_bytes": 9},
            "client": null,
        });
        let expected = json!({
            "name": "s",
            "servers": 1_000,
            "largest": 77,
            "spilled_bytes": 9,
            "troubles": vec![json!({"time": 1.0, "what": "lost"}); MOST_TROUBLES],
        });
        assert_eq!(brief(&record), expected);
        // Of one that somebody else has made.
        let odd = json!({"servers": 5, "sizes": [], "troubles": "none"});
        assert_eq!(brief(&odd)["servers"], Json::Null);
    }
}
