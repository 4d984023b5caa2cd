//! Credentials in a file: they must not be in the arguments of a program, which every user of the machine can read.

use std::path::Path;

use crate::error::Misuse;

/// The credentials of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Schemes and credentials that are sent as they are.
    pub(super) presented: Vec<(String, Vec<u8>)>,
    /// The SASL user and the password.
    pub(super) sasl: Option<(String, String)>,
}

/// Reads a file. Errors name lines, never what is in them.
pub(super) fn read(file: &Path) -> Result<Credentials, Misuse> {
    let text = crate::ownership::read_credentials(AUTH_FILE, file)?;
    parse(&file.display().to_string(), &text)
}

const AUTH_FILE: &str = "auth file";

fn parse(name: &str, text: &str) -> Result<Credentials, Misuse> {
    let mut read = Credentials::default();
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    for (at, line) in lines {
        let fault = |problem: &str| {
            let remedy = "write lines such as: digest USER:PASSWORD, or: sasl USER PASSWORD";
            Misuse::new(AUTH_FILE, format!("{name}:{}: {problem}", at + 1)).remedy(remedy)
        };
        let (scheme, credential) = line.split_once(' ').ok_or_else(|| fault("no scheme and credential"))?;
        let credential = credential.trim();
        match scheme {
            "sasl" if read.sasl.is_some() => return Err(fault("a second SASL user")),
            "sasl" => {
                let (user, password) = credential.split_once(' ').ok_or_else(|| fault("no SASL user and password"))?;
                read.sasl = Some((user.to_owned(), password.trim().to_owned()));
            }
            "digest" if !credential.contains(':') => return Err(fault("no user and password")),
            scheme => read.presented.push((scheme.to_owned(), credential.as_bytes().to_vec())),
        }
    }
    if read == Credentials::default() {
        return Err(Misuse::new(AUTH_FILE, format!("{name} has no credentials")));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_credentials_and_errors_do_not_contain_them() {
        let read = parse("f", "# ours\n\ndigest a:b c \nsasl jobs  secret\nx y\n").unwrap();
        let presented = [("digest", "a:b c"), ("x", "y")].map(|(scheme, text)| (scheme.to_owned(), text.into()));
        assert_eq!(read.presented, presented);
        assert_eq!(read.sasl, Some(("jobs".to_owned(), "secret".to_owned())));
        for wrong in ["hunter2", "digest hunter2", "sasl hunter2", "sasl a b\nsasl a hunter2", "# hunter2"] {
            let error = parse("f", wrong).unwrap_err().to_string();
            assert!(error.starts_with("f") && !error.contains("hunter2"), "{error}");
        }
    }
}
