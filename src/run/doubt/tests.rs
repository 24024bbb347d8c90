use super::*;

#[test]
fn places_reach_the_end_and_those_that_the_witness_doubts_are_among_them() {
    assert_eq!(places(64, None, &[]), [0, 9, 18, 27, 36, 45, 54, 63]);
    assert_eq!(places(3, None, &[]), [0, 1, 2]);
    assert_eq!(places(1, Some(0), &[Some(-1.0)]), [0]);
    assert_eq!(places(0, None, &[]), Vec::<usize>::new());
    let mut likely = vec![Some(-0.1); 64];
    (likely[31], likely[33], likely[40]) = (Some(-9.0), None, Some(-5.0));
    let found = places(64, Some(30), &likely);
    assert_eq!(found.len(), 8);
    assert!([30, 31, 33, 40, 63].iter().all(|place| found.contains(place)), "{found:?}");
}
