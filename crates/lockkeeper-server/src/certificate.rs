//! The identity of a client's certificate: its subject, written as Java writes it.
//!
//! Access lists contain that text and are compared as text, so an access list means the same here and on Apache's
//! server. There the name is `X500Principal.getName()`: RFC 2253 with Java's changes (`sun.security.x509.AVA`, JDK
//! 17).

use std::fmt::Write;

use x509_cert::Certificate;
use x509_cert::der::asn1::{Any, BmpString, ObjectIdentifier};
use x509_cert::der::{Decode, Encode, Tag, Tagged};

use crate::machine::identity::Identity;

/// The attributes that RFC 2253 has keywords for; others are written as numbers.
const WORDS: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
];

/// Returns the identity of a certificate in DER. The caller has verified the certificate.
///
/// # Errors
/// The certificate cannot be decoded.
pub(crate) fn identity(certificate: &[u8]) -> Result<Identity, x509_cert::der::Error> {
    let certificate = Certificate::from_der(certificate)?;
    let mut name = String::new();
    // The most specific part comes first; in the certificate it is the last.
    let parts: Vec<_> = certificate.tbs_certificate().subject().iter_rdn().collect();
    for part in parts.into_iter().rev() {
        separate(&mut name, ',');
        let mut first = true;
        for attribute in part.iter() {
            if !std::mem::take(&mut first) {
                name.push('+');
            }
            write_attribute(&mut name, attribute.oid, &attribute.value)?;
        }
    }
    Ok(Identity::new(Identity::X509, name))
}

fn separate(name: &mut String, separator: char) {
    if !name.is_empty() {
        name.push(separator);
    }
}

/// Appends `CN=value`, or `2.5.4.5=#13023737` if there is no keyword or the value is not text.
fn write_attribute(name: &mut String, oid: ObjectIdentifier, value: &Any) -> Result<(), x509_cert::der::Error> {
    let number = oid.to_string();
    let word = WORDS.iter().find(|(known, _)| *known == number).map(|(_, word)| *word);
    match (word, text(value)) {
        (Some(word), Some(text)) => {
            name.push_str(word);
            name.push('=');
            write_escaped(name, &text);
        }
        (word, _) => {
            name.push_str(word.unwrap_or(&number));
            name.push_str("=#");
            for byte in value.to_der()? {
                let _ = write!(name, "{byte:02x}");
            }
        }
    }
    Ok(())
}

/// Returns the value if it is text.
fn text(value: &Any) -> Option<String> {
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => {
            std::str::from_utf8(value.value()).ok().map(str::to_owned)
        }
        // Decode it as Latin 1, as other implementations do.
        Tag::TeletexString => Some(value.value().iter().map(|byte| char::from(*byte)).collect()),
        Tag::BmpString => value.decode_as::<BmpString>().ok().map(|text| text.to_string()),
        _ => None,
    }
}

/// Escapes leading and trailing spaces and special characters with a backslash.
fn write_escaped(name: &mut String, text: &str) {
    let inner = text.trim_matches(' ');
    let before = if inner.is_empty() { text.len() } else { text.len() - text.trim_start_matches(' ').len() };
    for (at, c) in text.char_indices() {
        let at_an_end = at < before || at >= before + inner.len();
        match c {
            '\0' => name.push_str("\\00"),
            ',' | '=' | '+' | '<' | '>' | '#' | ';' | '"' | '\\' => name.extend(['\\', c]),
            ' ' if at_an_end => name.push_str("\\ "),
            c => name.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn name(attributes: &[(DnType, DnValue)]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in attributes {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let identity = identity(made.der()).unwrap();
        assert_eq!(identity.scheme, "x509");
        identity.id
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    /// The expected names are what `X500Principal.getName()` of JDK 17 printed for such certificates.
    #[test]
    fn subjects_are_written_as_java_writes_them() {
        let uid = || DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]);
        let dc = || DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 25]);
        let ia5 = |text: &str| DnValue::Ia5String(text.try_into().unwrap());
        assert_eq!(name(&[(DnType::CommonName, utf8("client1"))]), "CN=client1");
        assert_eq!(name(&[]), "");
        assert_eq!(
            name(&[
                (DnType::CountryName, DnValue::PrintableString("DE".try_into().unwrap())),
                (DnType::StateOrProvinceName, utf8("Berlin")),
                (DnType::OrganizationName, utf8("Acme, Inc.")),
                (DnType::CommonName, utf8("x \"y\" <z>;=#\\+a")),
            ]),
            r#"CN=x \"y\" \<z\>\;\=\#\\\+a,O=Acme\, Inc.,ST=Berlin,C=DE"#
        );
        assert_eq!(
            name(&[(dc(), ia5("acme")), (uid(), utf8("u1")), (DnType::CommonName, utf8("jürgen"))]),
            "CN=jürgen,UID=u1,DC=acme"
        );
        let serial = DnType::CustomDnType(vec![2, 5, 4, 5]);
        assert_eq!(
            name(&[
                (DnType::CommonName, utf8(" lead trail ")),
                (serial, DnValue::PrintableString("77".try_into().unwrap()))
            ]),
            r"2.5.4.5=#13023737,CN=\ lead trail\ "
        );
        assert_eq!(name(&[(DnType::CommonName, utf8("  "))]), r"CN=\ \ ");
        assert!(identity(b"nonsense").is_err());
    }
}
