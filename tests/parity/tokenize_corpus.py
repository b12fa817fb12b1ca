"""The documents on which tokenizers are compared: 38 scripts, code, emoji, broken white space, random bytes."""

import random

# Blocks of letters, by script.
_SCRIPTS = {
    "Latin": (0x41, 0x17F), "Greek": (0x391, 0x3C9), "Cyrillic": (0x410, 0x45F), "Armenian": (0x561, 0x587),
    "Hebrew": (0x5D0, 0x5EA), "Arabic": (0x620, 0x64A), "Syriac": (0x710, 0x72F), "Thaana": (0x780, 0x7A5),
    "Devanagari": (0x905, 0x94D), "Bengali": (0x985, 0x9CD), "Gurmukhi": (0xA05, 0xA4D), "Gujarati": (0xA85, 0xACD),
    "Oriya": (0xB05, 0xB4D), "Tamil": (0xB85, 0xBCD), "Telugu": (0xC05, 0xC4D), "Kannada": (0xC85, 0xCCD),
    "Malayalam": (0xD05, 0xD4D), "Sinhala": (0xD85, 0xDCA), "Thai": (0xE01, 0xE4E), "Lao": (0xE81, 0xECD),
    "Tibetan": (0xF40, 0xF7E), "Myanmar": (0x1000, 0x103E), "Georgian": (0x10D0, 0x10FA), "Hangul": (0xAC00, 0xAE00),
    "Jamo": (0x1100, 0x11FF), "Ethiopic": (0x1200, 0x1340), "Cherokee": (0x13A0, 0x13F5), "Khmer": (0x1780, 0x17D3),
    "Mongolian": (0x1820, 0x1878), "Hiragana": (0x3041, 0x3096), "Katakana": (0x30A1, 0x30FA), "Han": (0x4E00, 0x5200),
    "Vietnamese": (0x1EA0, 0x1EF9), "Gothic": (0x10330, 0x1034A), "Linear B": (0x10000, 0x1005D),
    "Mathematical": (0x1D400, 0x1D7FF), "Marks": (0x300, 0x362), "Braille": (0x2800, 0x28FF),
}

_WRITTEN = [
    "All human beings are born free and equal in dignity and rights. They're endowed with reason, aren't they? I'LL, "
    "you'd, WE'VE, it's 'sure' ''s 'tis o'clock.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах. 1234567 раз.",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,2024年12月31日。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق ٣٤٥٦.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "Cafe\u0301 versus café, A\u030A Å \u212B, q\u0323\u0307 q\u0307\u0323, ﬁ ½ ² ³ ¼, \u1100\u1161\u11a8 각.",
    "def f(x):\n    if x >= 10_000:\n\t\treturn {'a': [1, 22, 333, 4444]}  # no\n\n\n    return f(x+1)**2 != 0x1F\n",
    "#include <vector>\r\nint main() { std::vector<int> v{1,2,3}; return v[0]==1&&!v.empty() ? 0 : 1; }\r\n\r\n",
    "<html><body class=\"a-b_c\">&amp; &lt;s&gt; <s>no</s> <0x41> <unk></body></html>",
    "😀👍🏽👨‍👩‍👧‍👦🇫🇷🇩🇪 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ok 🤷🏻‍♀️!!! 1️⃣",
    " leading", "trailing ", "  two  two  ", "\n", " ", "\t\t\n \n\t x",
    "a \n b\n\n  c\r\n\r d \r\r\n", "\u00a0\u00a0x\u2003y\u3000z",
    "\u180ex \u200bx\u200d \ufeffx \x00 \x1f \x7f \x85y", "x\u2028y\u2029z\x0b\x0c",
    "", "a", "'", "''", "'s", " 's", "'S 'ſ 'T",
    "<|endoftext|>", "a<|endoftext|>b  <|endoftext|>  c<|endoftext|><|endoftext|>", "<|endof text|> <|endoftext",
    "a" * 105,
    "abababababababababababababababababab ababababababababababababab",
    "=====----=====....," * 6, "\n" * 40 + "x" + " " * 70 + "y",
    "1 12 123 1234 12345 123456 1234567 ٣٤٥ Ⅻ ①②③ 1.5e-10 1,000,000", "don't DON'T Don’t l'été",
    "▁▁ ▁x x▁y ▁", "\u2581",
]


def documents():
    """Returns the documents, as bytes. Some are not UTF-8."""
    random_ = random.Random(7)
    result = [text.encode() for text in _WRITTEN]
    for first, last in _SCRIPTS.values():
        words = ["".join(chr(random_.randint(first, last)) for _ in range(random_.randint(1, 7))) for _ in range(9)]
        result.append("".join(word + random_.choice([" ", " ", ", ", "\n", ". ", "-", "12 ", "\t", "  "])
                              for word in words).encode())
    for size in (1, 2, 3, 5, 8, 40, 200):
        result.append(bytes(random_.randrange(256) for _ in range(size)))
    text = _WRITTEN[2].encode() + "é€😀".encode()
    result += [text[:cut] for cut in (1, 2, 4, len(text) - 1, len(text) - 2, len(text) - 3)] + [text[1:40], text[2:41]]
    result += [b"\xc3\x28 \xa0\xa1 \xe2\x28\xa1 \xe2\x82 \xf0\x28\x8c\xbc \xf0\x9f\x98 \xed\xa0\x80 \xf8\x88 \xc0\xaf"]
    whitespace = [" ", "  ", "\n", "\r\n", "\t", "x", "1", ".", "'s", "é", "\u00a0"]
    for _ in range(12):
        result.append("".join(random_.choice(whitespace) for _ in range(30)).encode())
    return result


def training_lines():
    """Returns lines to train small vocabularies on."""
    lines = []
    for document in documents():
        lines += document.decode(errors="replace").splitlines(keepends=True)
    return lines * 3 + ["the quick brown fox jumps over the lazy dog and then it runs away into the woods again\n"] * 20
