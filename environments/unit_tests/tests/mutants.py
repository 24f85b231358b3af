"""Mutants: plausible mistakes in each problem's solution, as what to replace in the reference by what."""

from __future__ import annotations

MUTANTS: dict[str, list[tuple[str, str]]] = {
    "clamp": [
        ("max(low, min(value, high))", "min(value, high)"),
        ("max(low, min(value, high))", "max(low, value)"),
        ("max(low, min(value, high))", "value if low <= value <= high else low if value < 0 else high"),
    ],
    "is_palindrome": [
        ("character.lower()", "character"),
        (" if character.isalnum()", ""),
        ("character.isalnum()", "character.isalpha()"),
        ("kept == kept[::-1]", "len(kept) < 2"),
        ("kept == kept[::-1]", "kept[:1] == kept[-1:]"),
        ("kept == kept[::-1]", "kept == kept[::-1] and len(kept) % 2 == 0"),
    ],
    "word_counts": [
        ("text.lower().split()", "text.split()"),
        ("text.lower().split()", "text.lower().split(' ')"),
        ("text.lower().split()", "text.lower().replace('-', ' ').split()"),
        ("counts.get(word, 0) + 1", "1"),
    ],
    "without_repeats": [
        ("list(dict.fromkeys(numbers))", "sorted(set(numbers))"),
        ("list(dict.fromkeys(numbers))", "list(dict.fromkeys(numbers[::-1]))[::-1]"),
        ("list(dict.fromkeys(numbers))", "[n for i, n in enumerate(numbers) if numbers[i - 1 : i] != [n]]"),
    ],
    "roman": [
        ('(4, "IV"), ', ""),
        ('(900, "CM"), ', ""),
        ('(90, "XC"), ', ""),
        ('(40, "XL")', '(40, "XXXX")'),
    ],
    "prime_factors": [
        ("divisor * divisor > number", "divisor * divisor >= number"),
        ("while number % divisor == 0", "if number % divisor == 0"),
        ("divisor += 1", "divisor += 1 + (divisor == 12)"),
        ("divisor * divisor > number", "divisor > 17"),
    ],
    "extremes": [
        ("(min(numbers), max(numbers))", "(max(numbers), min(numbers))"),
        ("(min(numbers), max(numbers))", "(min(numbers), max(0, *numbers))"),
        ("(min(numbers), max(numbers))", "[min(numbers), max(numbers)]"),
    ],
    "shared": [
        ("set(left) & set(right)", "set(left) | set(right)"),
        ("set(left) & set(right)", "set(left) & set(right[:-1])"),
        ("set(left) & set(right)", "frozenset(left) & frozenset(right)"),
    ],
    "mean": [
        ("len(numbers)", "(len(numbers) - 1 or 1)"),
        ("sum(numbers) / len(numbers)", "float(sum(numbers) // len(numbers))"),
        ("sum(numbers) / len(numbers)", "sorted(numbers)[len(numbers) // 2]"),
        ("sum(numbers) / len(numbers)", "round(sum(numbers) / len(numbers), 3)"),
    ],
    "balanced": [
        ("opened.pop() != closing[bracket]", "not opened.pop()"),
        ("return not opened", "return True"),
        ("not opened or opened.pop()", "opened and opened.pop()"),
        ("opened.pop() != closing[bracket]", "opened.remove(closing[bracket])"),
    ],
    "run_lengths": [
        ("groupby(text)", "groupby(sorted(text))"),
        ("len(list(run))", "1"),
        (
            "[(character, len(list(run))) for character, run in groupby(text)]",
            "list({c: text.count(c) for c in text}.items())",
        ),
    ],
    "chunks": [
        ("range(0, len(numbers), size)", "range(0, len(numbers) - size + 1, size)"),
        ("start + size", "start + size - 1"),
        ("range(0, len(numbers), size)", "range(0, len(numbers) + 1, size)"),
    ],
    "fibonacci": [
        ("one, other = 0, 1", "one, other = 1, 1"),
        ("return one", "return other"),
        ("return one", "return round(((1 + 5**0.5) / 2) ** index / 5**0.5)"),
    ],
    "in_base": [
        ('"0123456789abcdef"', '"0123456789ABCDEF"'),
        ("number //= base", "number = number // base if number > base else 0"),
        ('digits = "0123456789abcdef"[number % base] + digits', 'digits += "0123456789abcdef"[number % base]'),
    ],
    "caesar": [
        (" % 26", ""),
        ("if character.islower()", "if True"),
        ('or "A" <= character <= "Z"', ""),
        ('"a" <= character <= "z" or "A" <= character <= "Z"', "character.isalpha()"),
        ("+ shift", "+ abs(shift)"),
    ],
    "by_length": [
        ("sorted(words)", "words"),
        ("sorted(words)", "sorted(set(words))"),
        ("sorted(words)", "sorted(words, reverse=True)"),
    ],
    "pair_with_sum": [
        ("first.setdefault(number, j)", "first[number] = j"),
        ("return first[total - number], j", "return j, first[total - number]"),
        ("return first[total - number], j", "return [first[total - number], j]"),
        ("first.setdefault(number, j)", "first.setdefault(abs(number), j)"),
    ],
    "transposed": [
        ("list(column)", "column"),
        ("zip(*rows, strict=True)", "zip(*rows[::-1])"),
        ("zip(*rows, strict=True)", "[[row[i] for row in rows] for i in range(3 if rows else 0)]"),
    ],
    "duration": [
        ("seconds % 60", "seconds % 61"),
        (" // 60 % 60:02", " // 60 % 60"),
        ("seconds // 60 % 60", "seconds // 60 % 61"),
        ("seconds // 3600", "seconds // 3600 % 24"),
        ("seconds // 3600", "seconds // 3601"),
        ("seconds // 60 % 60:02}", "min(seconds // 60 % 60, 58):02}"),
    ],
    "merged": [
        ("low <= result[-1][1]", "low < result[-1][1]"),
        ("low <= result[-1][1]", "low <= result[-1][1] + 1"),
        ("max(high, result[-1][1])", "high"),
        ("(min(pair), max(pair))", "tuple(pair)"),
    ],
    "edit_distance": [
        ("before + (one != other)", "before + 2 * (one != other)"),
        ("row[j] + 1, ", ""),
        ("return row[-1]", "return sum(a != b for a, b in zip(left, right)) + abs(len(left) - len(right))"),
    ],
    "type_names": [
        ("type(value).__name__", "'int' if value == 1 else type(value).__name__"),
        ("type(value).__name__", "'int' if isinstance(value, int) else type(value).__name__"),
        ("type(value).__name__", "'None' if value is None else type(value).__name__"),
    ],
    "checksum": [
        ("utf-8", "latin-1"),
        ("sum(data) % 256", "sum(data) % 255"),
        ("sum(data)", "sum(map(ord, text))"),
        ("bytes([sum(data) % 256])", "bytes([min(sum(data), 255)])"),
    ],
    "polynomial": [
        ("in coefficients:", "in coefficients[::-1]:"),
        ("value * x + coefficient", "(value + coefficient) * x"),
        ("value * x + coefficient", "value * abs(x) + coefficient"),
    ],
}
