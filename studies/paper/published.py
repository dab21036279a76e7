"""What the paper prints: values, genes and words of Weine, Carbonetto, Irizarry and Stephens (2026)."""

from __future__ import annotations

import math


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# ---------------------------------------------------------------- MCF-7

MCF7_SPEARMAN = {1.0: 0.67, math.inf: 0.91}  # between the two treatment factors

MCF7_GENES = {  # baseline, RA and TGF-beta factor, by c
    1.0: {
        "baseline": _words("KRT8 COX1 ND4 ND5 ATP6 CYTB COX2 COX3 ACTB EEF1A1"),
        "RA": _words("CYP26B1 CYP26A1 SLC5A5 STRA6 SHROOM1 HOXA1 LCN2 KDR PTPRH SERPINA3"),
        "TGFb": _words("TP63 GABRP TCIM SPOCK1 DOCK4 MGP KIAA2012 COL4A3 NCF2 PTPRB"),
    },
    math.inf: {
        "baseline": _words("KRT8 COX1 ND4 ND5 ATP6 CYTB COX2 COX3 ACTB EEF1A1"),
        "RA": _words("ND4 CYTB ATP6 ND5 COX1 COX2 EEF1A1 COX3 ACTB PABPC1"),
        "TGFb": _words("KRT8 COX1 ND4 ACTB EEF1A1 ACTG1 COX2 EEF2 ND5 ATP6"),
    },
}

# ---------------------------------------------------------------- BBC news: 20 words for each of 10 factors

BBC_SMALL_C = {  # c = 0.001
    "k1": _words(
        "tori labour elect parti blair kennedi lib conserv dem howard liber democrat voter prime "
        "chancellor tax brown vote toni immigr"
    ),
    "k2": _words(
        "film actor oscar nomin actress award comedi star foxx nomine aviat drama sideway scorses "
        "staunton dicaprio bafta hollywood ceremoni drake"
    ),
    "k3": _words(
        "user technolog broadband digit mobil devic phone web content network net microsoft comput "
        "download program search internet video pcs gadget"
    ),
    "k4": _words(
        "hunt sentenc crimin guilti prosecut murder law suspect arrest virus detain lawyer evid trial "
        "investig fraud polic offenc ban prosecutor"
    ),
    "k5": _words(
        "wale win ireland england victori injuri match play franc squad coach itali side half william "
        "minut cup player game score"
    ),
    "k6": _words(
        "growth economi price rate economist rise profit bank inflat quarter market forecast econom "
        "rose analyst manufactur consum export dollar retail"
    ),
    "k7": _words(
        "chelsea arsenal liverpool wenger gerrard parri rover club mourinho ferguson everton striker "
        "fiat consol manchest villa footbal anfield aston morient"
    ),
    "k8": _words(
        "athlet olymp women urban marathon album radcliff artist indoor athen hip medal hop gadget "
        "song band music drug holm soul"
    ),
    "k9": _words(
        "iran straw palestinian blog isra aid embargo tsunami turkey peac egypt china foreign iraqi "
        "israel wto cyprus india blogger rugbi"
    ),
    "k10": _words(
        "deutsch yuko boers lse sharehold takeov euronext russian mci file seed gazprom bid ukip "
        "auction houston kilroy chart silk khodorkovski"
    ),
}

BBC_INFINITE_C = {  # c = inf
    "k1": _words(
        "labour elect parti govern peopl blair minist tori plan brown tax howard public leader prime "
        "campaign work polit vote year"
    ),
    "k2": _words(
        "film award star year show actor director oscar nomin includ won movi actress role win prize "
        "comedi festiv bbc british"
    ),
    "k3": _words(
        "game mobil technolog peopl phone digit video year player make time play music devic develop "
        "market gadget high work comput"
    ),
    "k4": _words(
        "law court govern lord case rule polic legal told claim right charg yuko offic compani bill "
        "trial ban hunt year"
    ),
    "k5": _words(
        "england wale ireland game nation rugbi franc play half side win player back year coach "
        "scotland team robinson injuri time"
    ),
    "k6": _words(
        "year market compani bank sale price firm share growth economi month rate expect econom "
        "countri rise busi report profit china"
    ),
    "k7": _words(
        "club game play player unit time chelsea manag footbal leagu goal team liverpool win arsenal "
        "back year manchest side cup"
    ),
    "k8": _words(
        "music year song band record album show number includ top singl chart award artist perform "
        "rock singer releas peopl radio"
    ),
    "k9": _words(
        "peopl user net servic network site softwar firm internet system mail comput search secur "
        "call inform onlin websit broadband virus"
    ),
    "k10": _words(
        "year world win final set open olymp play time champion athlet match race titl game won drug "
        "test roddick beat"
    ),
}

BBC_WORDS = {0.001: BBC_SMALL_C, math.inf: BBC_INFINITE_C}

BBC_NAMED = {"politics": "k1", "film": "k2", "business": "k6"}  # in both fits
BBC_RARE = ("dicaprio", "foxx")  # proper nouns that c = 0.001 brings up in the film factor
