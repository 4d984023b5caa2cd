//! The parts of Lockkeeper's own files that are not single values: realms and rules.

use lockkeeper_helix::TransferRule;
use lockkeeper_session::ensemble::check_servers;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::meant;
use super::layers::Layers;
use super::{RealmSetting, Setting};
use crate::realms::check_prefix;
use crate::settings::error::{Fault, Origin};

/// The table of realms.
pub(super) const REALMS: &str = "realms";

/// The tables of rules, one for each.
pub(super) const TRANSFER: &str = "transfer";

/// Reads `[realms]`: prefixes and their servers. `place` returns the place of an offset.
pub(super) fn realms(table: &DeTable<'_>, place: impl Fn(usize) -> Origin, layers: &mut Layers) {
    for (prefix, servers) in sorted(table) {
        let origin = place(prefix.span().start);
        let prefix = prefix.get_ref().to_string();
        let key = format!("{REALMS}.{prefix:?}");
        let fault = |problem: String, remedy: &str| Fault::new(origin.clone(), &key, problem).remedy(remedy);
        if let Err(error) = check_prefix(&prefix) {
            layers.faults.push(fault(error.to_string(), "write an absolute path in quotes, or \"/\" for all others"));
            continue;
        }
        let DeValue::String(servers) = servers.get_ref() else {
            let problem = format!("is of the type {}, not a text", servers.get_ref().type_str());
            layers.faults.push(fault(problem, "write its servers, as in \"zk1:2181,zk2:2181\""));
            continue;
        };
        if let Err(error) = check_servers(servers) {
            layers.faults.push(fault(error.to_string(), "as in zk1:2181,zk2:2181/app"));
            continue;
        }
        layers.realms.retain(|realm| realm.value.prefix != prefix);
        layers.realms.push(Setting { value: RealmSetting { prefix, servers: servers.to_string() }, origin });
    }
}

/// Reads the tables `[[transfer]]`.
pub(super) fn transfers(value: &Spanned<DeValue<'_>>, place: impl Fn(usize) -> Origin, layers: &mut Layers) {
    let example = "write [[transfer]] and name, owner and requestor below";
    let tables = match value.get_ref() {
        DeValue::Array(tables) => tables.iter().collect(),
        _ => Vec::new(),
    };
    if tables.is_empty() || tables.iter().any(|table| !matches!(table.get_ref(), DeValue::Table(_))) {
        let fault = Fault::new(place(value.span().start), TRANSFER, "is a list of tables").remedy(example);
        return layers.faults.push(fault);
    }
    for table in tables {
        let DeValue::Table(fields) = table.get_ref() else { continue };
        let origin = place(table.span().start);
        let mut rule = TransferRule::default();
        let before = layers.faults.len();
        for (key, value) in sorted(fields) {
            let written = format!("{TRANSFER}.{}", key.get_ref());
            let at = place(key.span().start);
            let field = match key.get_ref().as_ref() {
                "name" => &mut rule.name,
                "owner" => &mut rule.owner,
                "requestor" => &mut rule.requestor,
                other => {
                    let fault = Fault::new(at, written, "there is no such key");
                    let fault = match meant(other, ["name", "owner", "requestor"]) {
                        Some(meant) => fault.remedy(format!("did you mean {meant}?")),
                        None => fault.remedy(example),
                    };
                    layers.faults.push(fault);
                    continue;
                }
            };
            match value.get_ref() {
                DeValue::String(text) if !text.is_empty() => *field = text.to_string(),
                value => {
                    let problem = format!("is of the type {} or empty, not a text", value.type_str());
                    layers.faults.push(Fault::new(at, written, problem).remedy("write a text; * matches anything"));
                }
            }
        }
        for (field, text) in [("name", &rule.name), ("owner", &rule.owner), ("requestor", &rule.requestor)] {
            if text.is_empty() && layers.faults.len() == before {
                let fault = Fault::new(origin.clone(), format!("{TRANSFER}.{field}"), "is missing");
                layers.faults.push(fault.remedy(example));
            }
        }
        if layers.faults.len() == before {
            layers.transfers.push(Setting { value: rule, origin });
        }
    }
}

/// In the order of the file, in which mistakes are reported.
fn sorted<'a, 'b>(table: &'a DeTable<'b>) -> Vec<(&'a Spanned<std::borrow::Cow<'b, str>>, &'a Spanned<DeValue<'b>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}
