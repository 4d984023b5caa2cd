//! Where letters go in Kafka.

use std::fmt;

/// The default topic.
pub const TOPIC: &str = "MdmDeadLetterQueue";

/// An address that is not valid.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is not a Kafka address ({why}): write kafka:HOST:PORT,HOST:PORT or kafka:HOST:PORT/TOPIC")]
pub struct AddressError {
    address: String,
    why: &'static str,
}

/// The brokers and the topic, written as `kafka:HOST:PORT,HOST:PORT/TOPIC`. The default topic is [`TOPIC`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(super) brokers: String,
    pub(super) topic: String,
}

impl std::str::FromStr for Address {
    type Err = AddressError;

    fn from_str(address: &str) -> Result<Self, AddressError> {
        let refuse = |why| Err(AddressError { address: address.to_owned(), why });
        let rest = address.strip_prefix("kafka:").unwrap_or(address);
        let (brokers, topic) = rest.split_once('/').unwrap_or((rest, TOPIC));
        for broker in brokers.split(',') {
            let Some((host, port)) = broker.rsplit_once(':') else { return refuse("a broker without a port") };
            if host.is_empty() || host.contains(char::is_whitespace) {
                return refuse("a broker without a host");
            }
            if port.parse::<u16>().ok().is_none_or(|port| port == 0) {
                return refuse("a broker whose port is not a number from 1 to 65535");
            }
        }
        // Kafka's own rule.
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if topic.is_empty() || topic.len() > 249 || [".", ".."].contains(&topic) || !topic.chars().all(legal) {
            return refuse("a topic has 1 to 249 letters, digits, '.', '_' and '-'");
        }
        Ok(Address { brokers: brokers.to_owned(), topic: topic.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kafka:{}/{}", self.brokers, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_brokers_and_perhaps_a_topic() {
        let parsed: Address = "kafka:a:9092,b:9093".parse().unwrap();
        assert_eq!(parsed.to_string(), "kafka:a:9092,b:9093/MdmDeadLetterQueue");
        assert_eq!("kafka:[::1]:9092/x.y-z_1".parse::<Address>().unwrap().topic, "x.y-z_1");
        for wrong in
            ["kafka:", "kafka:a", "kafka:a:0", "kafka::9092", "kafka:a:9092,", "kafka:a:9092/", "kafka:a:9092/b c"]
        {
            let error = wrong.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("write kafka:"), "{error}");
        }
    }
}
