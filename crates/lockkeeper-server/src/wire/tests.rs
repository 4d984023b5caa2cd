use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn random_bytes_never_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = connect_request(&bytes);
        let _ = request(&bytes);
    }

    /// Random bytes seldom get past the header, so give them one of a real operation.
    #[test]
    fn random_bodies_never_panic_the_decoder(
        opcode in proptest::sample::select(crate::OpCode::ALL.to_vec()),
        body in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(255), any::<u8>()], 0..200),
    ) {
        let mut frame = vec![0, 0, 0, 7];
        frame.extend(opcode.as_i32().to_be_bytes());
        frame.extend(body);
        let _ = request(&frame);
    }
}
