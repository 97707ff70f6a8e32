//! Which node has which slot, as the nodes say. Asks nobody.

use redis::Value;

use crate::failure::{Failure, Refusal};
use crate::hosts::Host;
use crate::reply;
use crate::tags::SLOTS;

/// The nodes of one range of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    pub(super) slots: (u16, u16),
    pub(super) primary: Host,
    pub(super) replicas: Vec<Host>,
}

/// The primary of each slot.
#[derive(Clone, Debug)]
pub(super) struct Table {
    owners: Vec<Option<u16>>,
    primaries: Vec<Host>,
    replicas: Vec<Host>,
}

impl Table {
    /// Reads the answer to `CLUSTER SLOTS` of a node at that place.
    pub(super) fn read(answer: &Value, asked: &Host) -> Result<Self, Failure> {
        Ok(Self::of(read_shards(answer, asked)?))
    }

    pub(super) fn of(shards: Vec<Shard>) -> Self {
        let mut table =
            Self { owners: vec![None; usize::from(SLOTS)], primaries: Vec::new(), replicas: Vec::new() };
        for shard in shards {
            let owner = table.index_of(shard.primary);
            let (first, last) = shard.slots;
            for slot in first..=last.min(SLOTS - 1) {
                table.owners[usize::from(slot)] = Some(owner);
            }
            for replica in shard.replicas {
                if !table.replicas.contains(&replica) {
                    table.replicas.push(replica);
                }
            }
        }
        table
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Host> {
        let owner = *self.owners.get(usize::from(slot))?;
        self.primaries.get(usize::from(owner?))
    }

    /// Notes that a node said where a slot is.
    pub(super) fn moved(&mut self, slot: u16, to: Host) {
        let owner = self.index_of(to);
        if let Some(place) = self.owners.get_mut(usize::from(slot)) {
            *place = Some(owner);
        }
    }

    /// Every primary, and a slot that it has.
    pub(super) fn primaries(&self) -> impl Iterator<Item = (&Host, u16)> {
        self.primaries.iter().enumerate().filter_map(|(index, place)| {
            let slot = self.owners.iter().position(|owner| owner.map(usize::from) == Some(index))?;
            Some((place, u16::try_from(slot).ok()?))
        })
    }

    pub(super) fn replicas(&self) -> &[Host] {
        &self.replicas
    }

    /// The first run of slots that nobody has.
    pub(super) fn uncovered(&self) -> Option<(u16, u16)> {
        let first = self.owners.iter().position(Option::is_none)?;
        let length = self.owners[first..].iter().take_while(|owner| owner.is_none()).count();
        Some((u16::try_from(first).ok()?, u16::try_from(first + length - 1).ok()?))
    }

    fn index_of(&mut self, place: Host) -> u16 {
        let known = self.primaries.iter().position(|known| *known == place);
        let index = known.unwrap_or_else(|| {
            self.primaries.push(place);
            self.primaries.len() - 1
        });
        u16::try_from(index).unwrap_or(u16::MAX)
    }
}

/// The ranges in the answer to `CLUSTER SLOTS`.
pub(super) fn read_shards(answer: &Value, asked: &Host) -> Result<Vec<Shard>, Failure> {
    let mut shards = Vec::new();
    for range in reply::array(answer)? {
        let [first, last, nodes @ ..] = reply::array(range)? else { return Err(Failure::BadReply) };
        let slot = |value| u16::try_from(reply::integer(value)?).map_err(|_| reply::BadReply);
        let slots = (slot(first)?, slot(last)?);
        let mut places = nodes.iter().filter_map(|node| read_place(node, asked).transpose());
        // A node that does not know its own address yet is of no use to anybody.
        let Some(primary) = places.next().transpose()? else { continue };
        shards.push(Shard { slots, primary, replicas: places.collect::<Result<_, _>>()? });
    }
    Ok(shards)
}

/// Where a node is; `None` where the one that was asked does not know.
fn read_place(node: &Value, asked: &Host) -> Result<Option<Host>, Failure> {
    let [host, port, ..] = reply::array(node)? else { return Err(Failure::BadReply) };
    let port = u16::try_from(reply::integer(port)?).map_err(|_| Failure::BadReply)?;
    let host = match host {
        Value::Nil => "",
        text => reply::text(text)?,
    };
    Ok(match host {
        "?" => None,
        // The same as the one that was asked.
        "" => Some(Host { name: asked.name.clone(), port }),
        host => Some(Host { name: host.to_owned(), port }),
    })
}

/// Where a request is to go instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is there now.
    Moved(u16, Host),
    /// Only this key is there already: the slot migrates.
    Ask(Host),
}

impl Redirect {
    /// Reads the refusal of a node at that place.
    pub(super) fn read(refusal: &Refusal, asked: &Host) -> Option<Self> {
        let (slot, endpoint) = refusal.text.trim().split_once(' ')?;
        let (host, port) = endpoint.trim().rsplit_once(':')?;
        let host = if host.is_empty() || host == "?" { &asked.name } else { host };
        let place = Host { name: host.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? };
        match refusal.code.as_str() {
            "MOVED" => Some(Self::Moved(slot.parse().ok()?, place)),
            "ASK" => Some(Self::Ask(place)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, port: u16) -> Host {
        Host { name: host.to_owned(), port }
    }

    fn node(host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"07c37df".to_vec());
        Value::Array(vec![host, Value::Int(port), id, Value::Array(Vec::new())])
    }

    #[test]
    fn the_answer_of_a_node_is_read_with_what_it_leaves_out() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let answer = Value::Array(vec![
            Value::Array(vec![
                Value::Int(0),
                Value::Int(5_460),
                node(text("10.0.0.1"), 7_000),
                node(text("10.0.0.4"), 7_003),
            ]),
            Value::Array(vec![Value::Int(5_461), Value::Int(10_922), node(Value::Nil, 7_001)]),
            Value::Array(vec![Value::Int(10_923), Value::Int(16_383), node(text("?"), 7_002)]),
        ]);
        let mut table = Table::read(&answer, &place("fallback", 1)).unwrap();
        assert_eq!(table.owner(5_460), Some(&place("10.0.0.1", 7_000)));
        assert_eq!(table.owner(5_461), Some(&place("fallback", 7_001)));
        assert_eq!(table.owner(16_383), None);
        assert_eq!(table.uncovered(), Some((10_923, 16_383)));
        assert_eq!(table.replicas(), [place("10.0.0.4", 7_003)]);

        table.moved(16_383, place("10.0.0.9", 1));
        assert_eq!(table.owner(16_383), Some(&place("10.0.0.9", 1)));
        assert_eq!(table.primaries().count(), 3);
        assert!(Table::read(&Value::Array(vec![Value::Int(1)]), &place("x", 1)).is_err());
    }

    #[test]
    fn redirections_are_read_in_every_form_that_servers_write() {
        let asked = place("10.0.0.1", 7_000);
        let read = |code: &str, text: &str| Redirect::read(&Refusal::new(code, text), &asked);
        assert_eq!(
            read("MOVED", "3999 10.0.0.2:7001"),
            Some(Redirect::Moved(3_999, place("10.0.0.2", 7_001)))
        );
        assert_eq!(read("MOVED", "3999 :7001"), Some(Redirect::Moved(3_999, place("10.0.0.1", 7_001))));
        assert_eq!(read("ASK", "3999 ::1:7001"), Some(Redirect::Ask(place("::1", 7_001))));
        assert_eq!(read("ASK", "3999 node-b.lan:7001"), Some(Redirect::Ask(place("node-b.lan", 7_001))));
        assert_eq!(read("MOVED", "3999"), None);
        assert_eq!(read("TRYAGAIN", "3999 10.0.0.2:7001"), None);
    }
}
