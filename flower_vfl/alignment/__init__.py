"""Private ID alignment: the cryptography, as pure functions on bytes and arrays; messages and files are in `apps`.

The label party learns the IDs that it has in common with all feature parties, whatever their number, and each party's
count. No party learns an ID, or a number of IDs, that two parties share and the others do not. The protocol is
Kolesnikov et al.'s multi-party intersection in its star form, with a Diffie-Hellman pseudorandom function for the
oblivious transfer:

1. *Query.* The label party sends [r]H(x) for each of its IDs x, shuffled, r drawn for this run.
2. *Answer.* Feature party i returns [k_i][r]H(x); the label party removes r and obtains F_i(x), a pseudorandom
   value of x and party i; party i alone can compute it for other IDs.
3. *Table.* For each of its own IDs y, party i stores F_i(y) xor s_i(y) in an oblivious table, whose size depends on its
   count alone. The s_i(y) are xors of pseudorandom values, one for each pair of feature parties, so that their xor over
   all parties is zero. A read of the table at an ID that is not in it gives noise.
4. *Match.* The label party reads every table at each x, removes F_i(x) and xors over the parties: zero exactly where
   all have x. It sends each party the tags of the matches, the second part of F_i(x), which that party can look up.

`group` is the curve, `workers` computes on it in several processes, `table` is the oblivious table, `psi` has the steps
above, and `hashed` the alternative with a shared salt.

References
----------
V. Kolesnikov, N. Matania, B. Pinkas, M. Rosulek, N. Trieu, "Practical Multi-party Private Set Intersection from
Symmetric-Key Techniques", CCS 2017, section 5 (augmented semi-honest). S. Jarecki, A. Kiayias, H. Krawczyk,
"Round-Optimal Password-Protected Secret Sharing ...", ASIACRYPT 2014 (the function F). G. Garimella, B. Pinkas,
M. Rosulek, N. Trieu, A. Yanai, "Oblivious Key-Value Stores and Amplification for Private Set Intersection", CRYPTO
2021, section 4 (the table).
"""
