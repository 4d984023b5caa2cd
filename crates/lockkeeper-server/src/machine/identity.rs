//! Identities of clients, and the permissions that an access list gives them.
//!
//! This module has only proved identities; `account` checks the proofs. The rules are ZooKeeper's, scheme by scheme,
//! because an access list must keep its meaning after a move to an ensemble.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use lockkeeper_wire::{Acl, AclId, ErrorCode, Perms};

use crate::machine::budget;

/// An identity that a client has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The scheme of the proof, for example `digest`.
    pub scheme: String,
    /// The identity in the scheme's notation, for example `user:hash`.
    pub id: String,
}

impl Identity {
    /// The scheme of a user name with a hashed password.
    pub const DIGEST: &'static str = "digest";
    /// The scheme of a SASL user.
    pub const SASL: &'static str = "sasl";
    /// The scheme of the subject of a client's certificate.
    pub const X509: &'static str = "x509";

    /// The scheme of the user whose process is at the other end of a Unix socket.
    pub const UID: &'static str = "uid";

    /// Returns the identity that passes every access list.
    pub fn superuser() -> Self {
        Self { scheme: "super".to_owned(), id: String::new() }
    }

    /// Returns an identity of any scheme.
    pub fn new(scheme: impl Into<String>, id: impl Into<String>) -> Self {
        Self { scheme: scheme.into(), id: id.into() }
    }
}

/// The most entries of an access list, and the most bytes of its texts. A list is compared with a client's identities for each
/// operation on its node and for each event, so its length is work that other clients wait for.
pub(crate) const ENTRIES: usize = 128;
pub(crate) const LIST_BYTES: usize = 16 << 10;

/// The most identities of one connection, and the longest one in bytes.
const IDENTITIES: usize = 16;
const IDENTITY_BYTES: usize = 1 << 10;

/// Returns the beginning of a text that a client has chosen, for the log.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 64;
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

/// Compares secrets in constant time, so that the time does not show where they differ.
pub(crate) fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// The optional schemes of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schemes {
    /// Whether there are SASL users.
    pub sasl: bool,
    /// Whether clients present certificates.
    pub x509: bool,
}

/// All identities of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    /// The client's address. It needs no proof, so it does not count as a proved identity.
    pub address: Option<IpAddr>,
    /// Whether it may read and change every access list, whatever the list says.
    pub mends_lists: bool,
    proven: Vec<Identity>,
    is_super: bool,
}

impl Identities {
    /// Adds an identity; adding it again changes nothing.
    pub fn add(&mut self, identity: Identity) {
        self.is_super |= identity == Identity::superuser();
        if !self.proven.contains(&identity) {
            self.proven.push(identity);
        }
    }

    /// Returns whether it has this identity.
    pub(crate) fn has(&self, identity: &Identity) -> bool {
        self.proven.contains(identity)
    }

    /// Returns whether this identity is short enough, and one more fits.
    pub(crate) fn has_room_for(&self, identity: &Identity) -> bool {
        self.proven.len() < IDENTITIES && identity.scheme.len() + identity.id.len() <= IDENTITY_BYTES
    }

    /// Returns the cost of all identities.
    pub(crate) fn cost(&self) -> u64 {
        self.proven.iter().map(|Identity { scheme, id }| budget::identity(scheme, id)).sum()
    }

    /// Returns whether an entry of an access list matches this client, if it is no network.
    fn matches(&self, id: &AclId) -> bool {
        let AclId::Other { scheme, id } = id else { return true };
        match scheme.as_str() {
            // As with Apache's server, the SASL user named `super` matches every SASL entry.
            Identity::SASL => self.ids_of(Identity::SASL).any(|own| own == id || own == "super"),
            Identity::DIGEST | Identity::X509 | Identity::UID => self.ids_of(scheme).any(|own| own == id),
            _ => false,
        }
    }

    fn ids_of<'a>(&'a self, scheme: &'a str) -> impl Iterator<Item = &'a str> {
        self.proven.iter().filter(move |identity| identity.scheme == scheme).map(|identity| identity.id.as_str())
    }

    /// Returns scheme and user name of each identity, as `whoAmI` does; the superuser has no name.
    pub fn names(&self) -> Vec<(String, Option<String>)> {
        let address = self.address.map(|address| ("ip".to_owned(), Some(address.to_string())));
        let proven = self.proven.iter().map(|Identity { scheme, id }| {
            let name = match scheme.as_str() {
                Identity::DIGEST => Some(id.split(':').next().unwrap_or_default().to_owned()),
                Identity::SASL | Identity::X509 | Identity::UID => Some(id.clone()),
                _ => None,
            };
            (scheme.clone(), name)
        });
        address.into_iter().chain(proven).collect()
    }
}

/// The access list of a node, with its networks parsed once: it is compared for each operation on the node and each event.
#[derive(Clone)]
pub struct AccessList(Arc<Entries>);

struct Entries {
    entries: Arc<[Acl]>,
    /// What the entries of the scheme `ip` mean, in their order; `None` for a text that means nothing.
    networks: Box<[Option<Network>]>,
}

impl AccessList {
    /// Returns the entries as an answer contains them.
    pub(crate) fn shared(&self) -> Arc<[Acl]> {
        Arc::clone(&self.0.entries)
    }
}

impl<const N: usize> From<[Acl; N]> for AccessList {
    fn from(entries: [Acl; N]) -> Self {
        Self::from(&entries[..])
    }
}

impl From<&[Acl]> for AccessList {
    fn from(entries: &[Acl]) -> Self {
        let entries: Arc<[Acl]> = entries.into();
        let networks = entries.iter().filter_map(|entry| match &entry.id {
            AclId::Other { scheme, id } if scheme == Network::SCHEME => Some(Network::parse(id)),
            _ => None,
        });
        let networks = networks.collect();
        Self(Arc::new(Entries { entries, networks }))
    }
}

impl Deref for AccessList {
    type Target = [Acl];

    fn deref(&self) -> &[Acl] {
        &self.0.entries
    }
}

impl PartialEq for AccessList {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for AccessList {}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.entries.fmt(f)
    }
}

/// Checks that one of the entries gives one of the permissions.
pub(crate) fn permit(acl: &AccessList, perms: i32, who: &Identities) -> Result<(), ErrorCode> {
    let mut networks = acl.0.networks.iter();
    let mut matches = |entry: &Acl| {
        let is_network = matches!(&entry.id, AclId::Other { scheme, .. } if scheme == Network::SCHEME);
        let network = if is_network { networks.next().and_then(Option::as_ref) } else { None };
        entry.perms & perms != 0
            && if is_network {
                network.zip(who.address).is_some_and(|(network, address)| network.contains(address))
            } else {
                who.matches(&entry.id)
            }
    };
    let mends = who.mends_lists && perms & Perms::ADMIN != 0;
    let granted = who.is_super || mends || acl.iter().any(&mut matches);
    if granted { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

/// Returns whether a list lets other clients than these change it.
pub(crate) fn others_administrate(acl: &[Acl], owners: &[Identity]) -> bool {
    let is_owner = |id: &AclId| match id {
        AclId::WorldAnyone => false,
        AclId::Other { scheme, id } => owners.iter().any(|owner| owner.scheme == *scheme && owner.id == *id),
    };
    acl.iter().any(|entry| entry.perms & Perms::ADMIN != 0 && !is_owner(&entry.id))
}

/// Returns the list to store for a requested list: without repetitions, and with the client's identities in place of
/// `auth`.
///
/// An entry that can never match is refused: it would protect nothing or lock a node forever. `schemes` are the
/// optional schemes of this server. So is a list that is too long. The returned one may be too long as well.
pub(crate) fn resolve(acl: &[Acl], who: &Identities, schemes: Schemes) -> Result<Vec<Acl>, ErrorCode> {
    if !is_short(acl) {
        return Err(ErrorCode::InvalidAcl);
    }
    let mut resolved: Vec<Acl> = Vec::with_capacity(acl.len());
    let mut add = |entry: Acl| {
        if resolved.len() <= ENTRIES && !resolved.contains(&entry) {
            resolved.push(entry);
        }
    };
    for entry in acl {
        match &entry.id {
            AclId::WorldAnyone => add(entry.clone()),
            AclId::Other { scheme, .. } if scheme == "auth" => {
                let mut proven = who.proven.iter().filter(|identity| identity.scheme != "super").peekable();
                proven.peek().ok_or(ErrorCode::InvalidAcl)?;
                for Identity { scheme, id } in proven {
                    let id = AclId::Other { scheme: scheme.clone(), id: id.clone() };
                    add(Acl { perms: entry.perms, id });
                }
            }
            AclId::Other { scheme, id } => {
                let valid = match scheme.as_str() {
                    Network::SCHEME => Network::parse(id).is_some(),
                    // Java's split drops empty parts at the end.
                    Identity::DIGEST => id.trim_end_matches(':').split(':').count() == 2,
                    Identity::SASL => schemes.sasl && is_principal(id),
                    Identity::X509 => schemes.x509 && is_distinguished_name(id),
                    // Only the own one, so that the entry proves who wrote the list.
                    Identity::UID => who.ids_of(Identity::UID).any(|own| own == id),
                    _ => false,
                };
                if !valid {
                    return Err(ErrorCode::InvalidAcl);
                }
                add(entry.clone());
            }
        }
    }
    if resolved.is_empty() { Err(ErrorCode::InvalidAcl) } else { Ok(resolved) }
}

/// Returns whether a list has as few entries and bytes as it must have, before and after it is resolved.
pub(crate) fn is_short(acl: &[Acl]) -> bool {
    acl.len() <= ENTRIES && acl.iter().map(budget::texts).sum::<usize>() <= LIST_BYTES
}

/// Returns the list for a client that may read but not change it: without the hashes of passwords.
pub(crate) fn masked(acl: &[Acl]) -> Vec<Acl> {
    let mask = |entry: &Acl| match &entry.id {
        AclId::Other { scheme, id } if scheme == Identity::DIGEST => {
            let user = id.split(':').next().unwrap_or_default();
            let id = AclId::Other { scheme: scheme.clone(), id: format!("{user}:x") };
            Acl { perms: entry.perms, id }
        }
        _ => entry.clone(),
    };
    acl.iter().map(mask).collect()
}

/// Returns whether this is `name`, or Kerberos' `name/instance@REALM`.
fn is_principal(id: &str) -> bool {
    match id.split_once('@') {
        None => true,
        Some((name, realm)) => name.split('/').count() <= 2 && !realm.contains(['/', '@']),
    }
}

/// Returns whether Java accepts this as the name of a certificate's subject: `CN=build,OU=ci,O=Acme`.
///
/// The name is compared as text with the name from a certificate. This check only refuses what cannot be a name.
fn is_distinguished_name(id: &str) -> bool {
    let (mut escaped, mut quoted) = (false, false);
    let separates = |c: char| {
        let separates = !escaped && !quoted && matches!(c, ',' | ';' | '+');
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        separates
    };
    id.is_empty() || id.split(separates).all(|part| part.split_once('=').is_some_and(|(word, _)| is_attribute(word)))
}

/// Returns whether this is a keyword of Java's for a part of a name (`sun.security.x509.AVAKeyword`), or a number.
fn is_attribute(word: &str) -> bool {
    const WORDS: [&str; 21] = [
        "CN",
        "C",
        "L",
        "S",
        "ST",
        "O",
        "OU",
        "T",
        "IP",
        "STREET",
        "DC",
        "DNQUALIFIER",
        "DNQ",
        "SURNAME",
        "GIVENNAME",
        "INITIALS",
        "GENERATION",
        "EMAIL",
        "EMAILADDRESS",
        "UID",
        "SERIALNUMBER",
    ];
    let word = word.trim();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    WORDS.iter().any(|known| known.eq_ignore_ascii_case(word)) || word.contains('.') && word.split('.').all(is_number)
}

/// A range of addresses with a common prefix.
#[derive(Debug)]
struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    const SCHEME: &'static str = "ip";

    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            None => (text, None),
            Some((address, bits)) => (address, Some(bits)),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(width), |bits| bits.parse().ok())?;
        // Clients have no such addresses: see `Peer::ip`.
        if let IpAddr::V6(mapped) = address
            && let Some(address) = mapped.to_ipv4_mapped()
            && (96..=width).contains(&bits)
        {
            return Some(Self { address: address.into(), bits: bits - 96 });
        }
        (bits <= width).then_some(Self { address, bits })
    }

    fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(perms: i32, scheme: &str, id: &str) -> Acl {
        Acl { perms, id: AclId::Other { scheme: scheme.to_owned(), id: id.to_owned() } }
    }

    fn user(identities: &[(&str, &str)]) -> Identities {
        let mut who = Identities { address: Some([127, 0, 0, 1].into()), ..Identities::default() };
        for (scheme, id) in identities {
            who.add(Identity::new(*scheme, *id));
        }
        who
    }

    #[test]
    fn an_entry_matches_its_identity_and_the_superuser() {
        let may = |acl: &[Acl], who: &Identities| permit(&acl.into(), Perms::READ, who).is_ok();
        let acl = [entry(Perms::READ, "digest", "u:h"), entry(Perms::WRITE, "digest", "w:h")];
        assert!(may(&acl, &user(&[("digest", "u:h")])));
        assert!(!may(&acl, &user(&[("digest", "w:h")])), "has another permission");
        assert!(!may(&acl, &user(&[("sasl", "u:h")])), "a user of another scheme with that name");
        assert!(!may(&acl, &user(&[])));
        assert!(may(&acl, &user(&[("super", "")])));
        let sasl = [entry(Perms::READ, "sasl", "u")];
        assert!(may(&sasl, &user(&[("sasl", "u")])) && may(&sasl, &user(&[("sasl", "super")])));
        assert!(!may(&sasl, &user(&[("sasl", "v")])));
    }

    #[test]
    fn networks_are_compared_bit_by_bit() {
        let here = user(&[]);
        for (net, expected) in [
            ("127.0.0.1", true),
            ("127.0.0.2", false),
            ("127.0.0.2/31", false),
            ("127.0.0.0/31", true),
            ("127.255.255.255/8", true),
            ("10.0.0.0/0", true),
            ("::1", false),
        ] {
            assert_eq!(permit(&[entry(1, "ip", net)].into(), 1, &here).is_ok(), expected, "{net}");
        }
        let here = Identities { address: Some("2001:db8::1".parse().unwrap()), ..Identities::default() };
        for (net, expected) in [
            ("2001:db8::1", true),
            ("2001:db8::2", false),
            ("2001:db8::2/127", false),
            ("2001:db8::/127", true),
            ("2001:db8:ffff::/32", true),
            ("::/0", true),
            ("127.0.0.1/0", false),
        ] {
            assert_eq!(permit(&[entry(1, "ip", net)].into(), 1, &here).is_ok(), expected, "{net}");
        }
    }

    /// Each network belongs to its own entry, whatever stands between them.
    #[test]
    fn the_networks_of_a_list_are_parsed_once_and_keep_their_permissions() {
        let acl: AccessList = [
            entry(Perms::WRITE, "ip", "10.0.0.0/8"),
            entry(Perms::ALL, "digest", "u:h"),
            entry(Perms::ALL, "ip", "no network"),
            entry(Perms::READ, "ip", "127.0.0.0/8"),
            entry(Perms::CREATE, "ip", "10.0.0.1"),
        ]
        .into();
        let networks: Vec<_> =
            acl.0.networks.iter().map(|network| network.as_ref().map(|network| network.bits)).collect();
        assert_eq!(networks, [Some(8), None, Some(8), Some(32)]);
        let may = |address: [u8; 4], perms| {
            let who = Identities { address: Some(address.into()), ..Identities::default() };
            permit(&acl, perms, &who).is_ok()
        };
        assert!(may([127, 0, 0, 1], Perms::READ) && !may([127, 0, 0, 1], Perms::WRITE));
        assert!(may([10, 0, 0, 1], Perms::WRITE) && may([10, 0, 0, 1], Perms::CREATE));
        assert!(may([10, 0, 0, 2], Perms::WRITE) && !may([10, 0, 0, 2], Perms::CREATE));
        assert!(!may([192, 168, 0, 1], Perms::ALL));
    }

    #[test]
    fn an_entry_that_can_never_match_is_refused() {
        let who = user(&[("digest", "u:h"), ("super", "")]);
        for bad in [
            entry(1, "digest", "u"),
            entry(1, "digest", "u:h:x"),
            entry(1, "ip", "127.0.0.1/33"),
            entry(1, "ip", "localhost"),
            entry(1, "sasl", "u"),
            entry(1, "x509", "CN=a"),
            entry(1, "world", "someone"),
            entry(1, "nonsense", ""),
        ] {
            assert_eq!(
                resolve(std::slice::from_ref(&bad), &who, Schemes::default()),
                Err(ErrorCode::InvalidAcl),
                "{bad:?}"
            );
        }
        let all = Schemes { sasl: true, x509: true };
        assert_eq!(resolve(&[], &who, all), Err(ErrorCode::InvalidAcl));
        assert_eq!(resolve(&[entry(1, "auth", "")], &user(&[]), all), Err(ErrorCode::InvalidAcl));
        assert_eq!(resolve(&[entry(1, "sasl", "a@b@c")], &who, all), Err(ErrorCode::InvalidAcl));
        // As `java.security.auth.x500.X500Principal` of JDK 17 accepts or refuses them.
        for bad in ["foo", "CN=a,O", "CN=ab,O", "CN=a\\\\,O", "X=1", "E=x@y", "title=x", "=a", "1=x", "1.a=x", "1..2=x"]
        {
            assert_eq!(resolve(&[entry(1, "x509", bad)], &who, all), Err(ErrorCode::InvalidAcl), "{bad}");
        }
        for good in ["CN=a", "", "CN=", "1.2.3=x", "cn = a , o = b", "CN=a;O=b", "CN=\"q,r\"", "CN=a\\,b+UID=c"] {
            assert!(resolve(&[entry(1, "x509", good)], &who, all).is_ok(), "{good}");
        }
        for good in ["u", "u/host@REALM", "u@REALM"] {
            assert!(resolve(&[entry(1, "sasl", good)], &who, all).is_ok(), "{good}");
        }
    }

    /// Each entry of a list is compared with each identity, by the one thread that serves all clients.
    #[test]
    fn a_list_that_is_too_long_is_refused_before_it_is_resolved() {
        let many: Vec<_> = (0..IDENTITIES).map(|n| format!("u:{n}")).collect();
        let who = user(&many.iter().map(|id| ("digest", id.as_str())).collect::<Vec<_>>());
        let resolve = |acl: &[Acl]| {
            let resolved = resolve(acl, &who, Schemes::default())?;
            if is_short(&resolved) { Ok(resolved) } else { Err(ErrorCode::InvalidAcl) }
        };
        let list = |count: usize, scheme: &str| -> Vec<_> {
            (0..count).map(|n| entry(1, scheme, &format!("10.0.{}.{}", n / 256, n % 256))).collect()
        };
        assert_eq!(resolve(&list(ENTRIES, "ip")).map(|list| list.len()), Ok(ENTRIES));
        assert_eq!(resolve(&list(ENTRIES + 1, "ip")), Err(ErrorCode::InvalidAcl));
        // A list of half a megabyte, of which no entry is looked at: none of this scheme is valid.
        assert_eq!(resolve(&list(40_000, "nonsense")), Err(ErrorCode::InvalidAcl));
        let long = "x".repeat(LIST_BYTES);
        assert_eq!(resolve(&[entry(1, "digest", &format!("u:{long}"))]), Err(ErrorCode::InvalidAcl));
        // Each entry stands for as many as the client has identities.
        let all = |count| (1..=count).map(|perms| entry(perms, "auth", "")).collect::<Vec<_>>();
        assert_eq!(resolve(&all(ENTRIES as i32 / IDENTITIES as i32)).map(|list| list.len()), Ok(ENTRIES));
        assert_eq!(resolve(&all(ENTRIES as i32 / IDENTITIES as i32 + 1)), Err(ErrorCode::InvalidAcl));
    }

    #[test]
    fn auth_means_every_identity_that_the_client_has_proved() {
        let who = user(&[("digest", "u:h"), ("super", ""), ("sasl", "s")]);
        let schemes = Schemes { sasl: true, x509: false };
        let resolved = resolve(&[entry(3, "auth", "ignored"), entry(3, "digest", "u:h"), Acl::READ], &who, schemes);
        assert_eq!(resolved, Ok(vec![entry(3, "digest", "u:h"), entry(3, "sasl", "s"), Acl::READ]));
    }

    /// A list could otherwise shut everybody out for good.
    #[test]
    fn one_who_mends_lists_may_change_every_list_and_nothing_else() {
        let mender = Identities { mends_lists: true, ..user(&[("uid", "0")]) };
        let list = AccessList::from([entry(Perms::ALL, "uid", "1000")]);
        assert!(permit(&list, Perms::ADMIN, &mender).is_ok());
        assert!(permit(&list, Perms::READ | Perms::ADMIN, &mender).is_ok(), "getACL");
        for perms in [Perms::READ, Perms::WRITE, Perms::CREATE, Perms::DELETE] {
            assert!(permit(&list, perms, &mender).is_err(), "{perms}");
        }
        let owners = [Identity::new("uid", "1000"), Identity::new("uid", "0")];
        assert!(!others_administrate(&list, &owners) && !others_administrate(&[Acl::READ], &owners));
        for other in [Acl::OPEN, entry(Perms::ADMIN, "uid", "1001"), entry(Perms::ALL, "digest", "1000")] {
            assert!(others_administrate(&[list[0].clone(), other.clone()], &owners), "{other:?}");
        }
    }

    /// So an entry with a user of this machine shows who wrote the list.
    #[test]
    fn no_client_can_name_another_user_of_the_machine() {
        let who = user(&[("uid", "1000")]);
        let resolve = |acl: &[Acl]| resolve(acl, &who, Schemes { sasl: true, x509: true });
        assert_eq!(resolve(&[Acl::READ, entry(1, "auth", "")]), Ok(vec![Acl::READ, entry(1, "uid", "1000")]));
        assert!(resolve(&[entry(1, "uid", "1000")]).is_ok());
        for other in ["0", "01000", "1001", "", "1000 "] {
            assert_eq!(resolve(&[Acl::READ, entry(1, "uid", other)]), Err(ErrorCode::InvalidAcl), "{other:?}");
        }
        assert!(permit(&[entry(Perms::READ, "uid", "1000")].into(), Perms::READ, &who).is_ok());
        assert!(permit(&[entry(Perms::READ, "uid", "1001")].into(), Perms::READ, &who).is_err());
        assert!(who.names().contains(&("uid".to_owned(), Some("1000".to_owned()))));
    }

    #[test]
    fn a_masked_list_has_no_hashes() {
        assert_eq!(masked(&[entry(1, "digest", "u:h"), Acl::READ]), [entry(1, "digest", "u:x"), Acl::READ]);
    }
}
